from __future__ import annotations

import pytest

from trainyard.lib.log import redact
from trainyard.lib.secret_names import has_password, is_secret, is_secret_name

SECRETS = [
    "PASSWORD",
    "password",
    "PASSWD",
    "DB_PASS",
    "DB_PASSWORD",
    "DB_PASSWD",
    "MYSQL_PWD",
    "MYSQL_ROOT_PASSWORD",
    "PGPASSWORD",
    "REDIS_PASS_1",
    "SMTP_PASS2",
    "SECRET",
    "CLIENT_SECRET",
    "SECRET_KEY",
    "DJANGO_SECRET_KEY",
    "APP_SECRET_PROD",
    "clientSecret",
    "AccessKeySecret",
    "OSS_SECRET_V2",
    "TOKEN",
    "HF_TOKEN",
    "GITHUB_TOKEN",
    "accessToken",
    "SLACK_BOT_TOKEN",
    "TOKEN_2",
    "TOKEN2",
    "AUTH_TOKENS",
    "API_TOKENS",
    "SESSION_TOKEN_OLD",
    "API_KEY",
    "API_KEY_1",
    "OPENAI_API_KEY",
    "OPENAI_APIKEY",
    "apiKey",
    "api-key",
    "WANDB_API_KEY",
    "WANDB_KEY",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "PRIVATE_KEY",
    "PRIVATE_KEY_PEM",
    "SSH_PRIVATE",
    "SSH_KEY",
    "SIGNING_KEY",
    "ENCRYPTION_KEY",
    "API_KEYS",
    "KEY",
    "GITHUB_PAT",
    "PAT",
    "JWT",
    "APP_JWT",
    "OSS_AK",
    "OSS_SK",
    "AK",
    "SK",
    "SENTRY_DSN",
    "DATABASE_DSN",
    "NPM_AUTH",
    "AUTH",
    "AUTHORIZATION",
    "PROXY_AUTHORIZATION",
    "CREDENTIAL",
    "MYCREDENTIALS",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "AWS_CREDS",
    "SSH_PASSPHRASE",
    "AZURE_STORAGE_CONNECTION_STRING",
    "SLACK_WEBHOOK",
    "SLACK_WEBHOOK_URL",
    "SESSION_COOKIE",
    "STORAGE_SAS",
]

OTHERS = [
    "PWD",
    "OLDPWD",
    "OLD_PWD",
    "PATH",
    "HOME",
    "KEYBOARD",
    "KEYBOARD_LAYOUT",
    "MONKEY",
    "TURKEY",
    "DONKEY_COUNT",
    "KEYS_PER_NODE",
    "KEY_SIZE",
    "KEY_COUNT",
    "SORT_KEY",
    "PRIMARY_KEY",
    "PUBLIC_KEY",
    "PARTITION_KEY",
    "CACHE_KEY",
    "FEATURE_KEY",
    "HOCKEY",
    "TOKENIZER",
    "TOKENIZER_PATH",
    "TOKENIZERS_PARALLELISM",
    "NUM_TOKENS",
    "MAX_TOKENS",
    "max_new_tokens",
    "TOKEN_COUNT",
    "TOKENS_PER_SECOND",
    "PAD_TOKEN",
    "EOS_TOKEN",
    "BOS_TOKEN",
    "MASK_TOKEN",
    "PER_TOKEN",
    "AUTHOR",
    "AUTHORS",
    "GIT_AUTHOR_NAME",
    "AUTHENTICATED",
    "USE_AUTH",
    "NO_AUTH",
    "AUTH_MODE",
    "SSH_AUTH_SOCK",
    "PASSES",
    "NUM_PASSES",
    "FORWARD_PASS",
    "MULTI_PASS",
    "PASSENGERS",
    "COMPASS",
    "BYPASS",
    "PATTERN",
    "PATCH",
    "PATIENCE",
    "SKIP",
    "TASK",
    "DISK",
    "BREAK",
    "MASK",
    "RISK",
    "AKKA_PORT",
    "DSN_POOL_SIZE",
    "SECRETARY",
    "COOKIECUTTER_DIR",
    "IS_PRIVATE",
    "PRIVATE_NETWORK",
    "EPOCHS",
    "LR",
    "BATCH_SIZE",
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "LD_LIBRARY_PATH",
    "LANG",
    "DATABASE_URL",
    "1",
    "_",
    "钥匙",
]


def test_the_table_is_long_enough():
    assert len(SECRETS) >= 60 and len(OTHERS) >= 60
    assert not set(SECRETS) & set(OTHERS)


@pytest.mark.parametrize("name", SECRETS)
def test_a_name_is_a_secrets_when_it_says_so(name):
    assert is_secret_name(name) and is_secret(name, "x")


@pytest.mark.parametrize("name", ["", *OTHERS])
def test_a_name_is_no_secrets_when_it_only_looks_like_one(name):
    assert not is_secret_name(name) and not is_secret(name, "x")


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        ("postgres://me:hush@db/x", True),
        ("see https://u:p@h/ for it", True),
        ("redis://:hush@cache:6379/0", True),
        ("https://host:8443/a@b", False),
        ("ssh://git@host/x", False),
        ("user:password", False),
        ("http://[::1]:80/x@y", False),
    ],
)
def test_a_value_is_a_secret_when_it_is_an_address_with_a_password(value, secret):
    assert has_password(value) is secret
    assert is_secret("DATABASE_URL", value) is secret


def test_looking_at_values_and_names_takes_no_longer_than_they_are_long():
    assert not has_password("a://" * 50_000)
    assert not has_password("a" * 200_000 + "://" + "b" * 200_000)
    assert not is_secret_name("TOKEN" * 100_000)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("env: DB_PASS=hush x", "env: DB_PASS=*** x"),
        ("MYSQL_PWD=hush mysql", "MYSQL_PWD=*** mysql"),
        ("cd $PWD; PWD=/root", "cd $PWD; PWD=/root"),
        ("run --github-pat hush --x", "run --github-pat *** --x"),
        ("Authorization: Basic dTpw", "Authorization: Basic ***"),
        ("sorted(x, key=len)", "sorted(x, key=len)"),
        ("a basic training=1", "a basic training=1"),
    ],
)
def test_text_is_cleaned_by_the_same_table(text, shown):
    assert redact(text) == shown
