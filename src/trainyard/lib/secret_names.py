"""Which names and values are secrets: one table for everything that hides, seals or does not hand them on.

A name is split into its words: `API_KEY_1`, `apiKey` and `api-key` are API and KEY. What counts is the last word that
says something: numbers, and what tells one of several apart (`_PROD`, `_OLD`), are passed over.
"""

from __future__ import annotations

import itertools
import re
from functools import lru_cache

# Secret wherever they are in a name: nobody calls anything else so.
_ANYWHERE = frozenset(
    {
        "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE", "PASSCODE",
        "CREDENTIAL", "CREDENTIALS", "CREDS",
    }
)  # fmt: skip
# Secret as a name's last word: TOKEN_COUNT and KEY_SIZE are none.
_LAST = frozenset(
    {
        "TOKEN", "KEY", "PASS", "PWD", "PW", "PAT", "JWT", "AK", "SK", "DSN", "AUTH", "AUTHORIZATION", "BEARER",
        "COOKIE", "WEBHOOK", "SAS", "PRIVATE",
    }
)  # fmt: skip
# The same in the plural, which is a number of something unless it says of what: NUM_TOKENS, and API_TOKENS.
_PLURAL = frozenset({"TOKENS", "KEYS", "COOKIES"})
_OF_ACCESS = frozenset({"API", "ACCESS", "AUTH", "PRIVATE", "SECRET", "REFRESH", "SESSION", "SSH", "BOT"})
# Two words in a row that are a secret wherever they are, and those that are one at a name's end.
_PAIRS_ANYWHERE = frozenset({("ACCESS", "KEY"), ("PRIVATE", "KEY"), ("API", "KEY")})
_PAIRS = frozenset({("CONNECTION", "STRING"), ("CONN", "STR"), ("CONN", "STRING"), ("WEBHOOK", "URL")})
# Words that people write without a gap, at the end of one: PGPASSWORD, OPENAI_APIKEY.
_JOINED = re.compile(
    r"(PASSWORD|PASSWD|PASSPHRASE|(API|ACCESS|SECRET|PRIVATE|AUTH)_?(KEY|TOKEN)|CLIENTSECRET|CREDENTIALS?)\Z"
)
# Before a last word, these say that it is about something else: models have tokens, tables have keys, loops have passes.
_HARMLESS = {
    "TOKEN": frozenset(
        {"PAD", "EOS", "BOS", "UNK", "SEP", "CLS", "MASK", "SPECIAL", "STOP", "NUM", "MAX", "MIN", "PER", "IMAGE", "NEXT"}
    ),
    "KEY": frozenset(
        {
            "SORT", "PRIMARY", "FOREIGN", "PUBLIC", "PARTITION", "GROUP", "HOT", "CACHE", "COLUMN", "INDEX", "LABEL",
            "JOIN", "LOOKUP", "INPUT", "OUTPUT", "TEXT", "IMAGE", "METRIC", "FEATURE",
        }
    ),
    "PASS": frozenset({"FORWARD", "BACKWARD", "MULTI", "SINGLE", "NUM", "MAX", "ONE", "TWO", "FIRST", "SECOND", "BY"}),
    "PWD": frozenset({"OLD"}),
    "PRIVATE": frozenset({"IS"}),
    "AUTH": frozenset({"USE", "ENABLE", "DISABLE", "NO", "REQUIRE", "SKIP"}),
}  # fmt: skip
# What a shell calls its own folder.
_SHELLS = frozenset({"PWD", "OLDPWD"})
_PASSED_OVER = frozenset(
    {
        "VALUE", "PROD", "DEV", "STAGING", "TEST", "RO", "RW", "READ", "WRITE", "OLD", "NEW", "BASE64", "B64", "JSON",
        "RAW", "HEX", "DEFAULT", "MAIN", "BACKUP", "PRIMARY", "SECONDARY",
    }
)  # fmt: skip
# What a sealed text begins with; who seals is the server's secrets/sealing.py.
SEALED = "sealed:1:"
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_LONGEST = 256  # of a name that is looked at in its words; what is longer is no variable's
# A password in an address: https://user:x@server. Bounded, so that a long text takes no longer than its length.
_IN_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/:@'\"]{0,256}:[^\s/@'\"]{1,1024}@")


@lru_cache(4096)
def is_secret_name(name: str) -> bool:
    """Whether what has this name (a variable, a key of a document, an option) is a secret."""
    if name.upper() in _SHELLS or len(name) > _LONGEST:
        return False
    words = [word.upper() for word in _WORD.findall(name)]
    while words and (words[-1].isdigit() or (len(words) > 1 and words[-1] in _PASSED_OVER)):
        words.pop()
    if not words:
        return False
    if not _ANYWHERE.isdisjoint(words) or any(_JOINED.search(word) for word in words):
        return True
    if not _PAIRS_ANYWHERE.isdisjoint(itertools.pairwise(words)):
        return True
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in _LAST:
        return before not in _HARMLESS.get(last, frozenset())
    return (before, last) in _PAIRS or (last in _PLURAL and before in _OF_ACCESS)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable is a secret: by its name, or because its value is sealed or an address with a password in it."""
    return is_secret_name(name) or value.startswith(SEALED) or has_password(value)


def has_password(value: str) -> bool:
    """Whether a text has an address with a password in it."""
    return "://" in value and _IN_ADDRESS.search(value) is not None
