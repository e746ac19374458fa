"""Every code of the table makes one sentence and one hint; what no table knows is said in the provider's words."""

from __future__ import annotations

import string

import pytest

from trainyard.backends.aliyun.api.error_codes import BUSY, FAMILIES, ROWS
from trainyard.backends.aliyun.api.errors import (
    Context,
    Refused,
    Unanswered,
    code_of,
    explain,
    find_row,
    is_outcome_unknown,
    is_worth_another_place,
    proves_nothing_was_made,
)
from trainyard.lib.errors import (
    CapacityError,
    ConflictError,
    DeniedError,
    Error,
    InvalidError,
    NotFoundError,
    UnreachableError,
)

CONTEXT = Context(
    product="ecs",
    action="RunInstances",
    region="cn-beijing",
    host="ecs.cn-beijing.aliyuncs.com",
    form={"InstanceType": "ecs.gn6v-c8g1.2xlarge"},
)
FIELDS = {"subject", "thing", "action", "region", "message", "code"}
KNOWN = sorted(code for code in ROWS if code)


def told(code: str, message: str = "The thing is not so.", status: int = 400, **more) -> Error:
    return explain(Refused(code, message, status=status, **more), CONTEXT)


def assert_is_a_sentence_and_a_hint(error: Error) -> None:
    assert error.message
    assert not error.message.endswith(".")
    assert "\n" not in error.message
    assert error.hint.endswith(".")
    assert error.hint[0].isupper()
    assert "{" not in error.message + error.hint


@pytest.mark.parametrize("code", KNOWN)
def test_every_known_code_gives_a_sentence_and_a_hint(code):
    error = told(code)
    assert_is_a_sentence_and_a_hint(error)
    assert type(error) is not Error
    assert code_of(error) == code


@pytest.mark.parametrize("row", [row for _, row in FAMILIES] + list(ROWS.values()))
def test_rows_name_only_what_there_is(row):
    named = {name for _, name, _, _ in string.Formatter().parse(row.sentence + row.hint) if name}
    assert named <= FIELDS


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("OperationDenied.NoStock", CapacityError, "ecs.gn6v-c8g1.2xlarge is sold out"),
        ("Zone.NotOnSale", CapacityError, "not sold"),
        ("QuotaExceed.AfterpayInstance", CapacityError, "0 in cn-beijing"),
        ("InvalidAccountStatus.NotEnoughBalance", DeniedError, "balance"),
        ("Account.Arrearage", DeniedError, "balance"),
        ("RealNameAuthenticationError", DeniedError, "real-name"),
        ("Forbidden.RAM", DeniedError, "may not call ecs:RunInstances"),
        ("InvalidAccessKeyId.NotFound", DeniedError, "does not know this access key"),
        ("SignatureDoesNotMatch", DeniedError, "secret is wrong"),
        ("InvalidImageId.NotFound", NotFoundError, "no image"),
        ("InvalidVSwitchId.NotFound", NotFoundError, "there is no"),
        ("DependencyViolation.Instance", ConflictError, "still in use"),
        ("IncorrectInstanceStatus", ConflictError, "state"),
        ("QuotaExceeded.Vpc", CapacityError, "limit"),
        ("QuotaExceed.PostPaidDisk", CapacityError, "quota"),
        ("Throttling.User", UnreachableError, "too many calls"),
        ("InvalidTimeStamp.Expired", InvalidError, "clock"),
    ],
)
def test_what_matters_most_is_said_in_plain_words(code, kind, words):
    error = told(code)
    assert type(error) is kind
    assert words in error.message


def test_a_quota_of_zero_is_explained_when_the_account_is_new():
    message = "The maximum number of Pay-as-you-go instances is exceeded: user quota [0], used [0]."
    error = told("QuotaExceed.ElasticQuota", message, status=403)
    assert "every new account" in error.message
    assert "Quota Center" in error.hint


def test_a_denial_names_the_right_that_is_missing_when_the_provider_says_it():
    error = told("Forbidden.RAM", status=403, denied_action="ram:PassRole")
    assert "ram:PassRole" in error.message
    assert "ram:PassRole" in error.hint


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("InvalidSecurityGroupId.NotFound", "there is no security group x in cn-beijing"),
        ("KeyPair.AlreadyExist", "the name of the security group x is taken: no reason was given"),
        ("AuthorizationLimitExceed", "the security group x has as many rules as it may have"),
    ],
)
def test_the_sentence_reads_well_when_the_thing_has_an_article(code, sentence):
    context = Context(
        product="ecs", action="AuthorizeSecurityGroup", region="cn-beijing", about="the security group x"
    )
    assert explain(Refused(code, "", status=404), context).message == sentence


@pytest.mark.parametrize(
    ("status", "kind"), [(400, InvalidError), (403, DeniedError), (404, NotFoundError), (409, ConflictError)]
)
def test_an_unknown_code_is_said_with_request_id_and_address(status, kind):
    error = told(
        "Brand.NewCode",
        "Something\n  odd.",
        status=status,
        request_id="REQ-1",
        recommend="https://api.aliyun.com/troubleshoot?q=Brand.NewCode",
    )
    assert type(error) is kind
    assert_is_a_sentence_and_a_hint(error)
    assert "Brand.NewCode" in error.message
    assert "Something odd" in error.message
    assert "https://api.aliyun.com/troubleshoot" in error.hint
    assert "REQ-1" in error.hint


def test_an_unknown_code_still_has_a_hint_when_the_provider_gives_no_address():
    error = told("Brand.NewCode", "")
    assert_is_a_sentence_and_a_hint(error)
    assert "Brand.NewCode" in error.hint


def test_silence_says_whether_something_may_have_happened():
    sent = explain(Unanswered("it took too long", is_sent=True), CONTEXT)
    unsent = explain(Unanswered("the connection was refused", is_sent=False), CONTEXT)
    assert_is_a_sentence_and_a_hint(sent)
    assert_is_a_sentence_and_a_hint(unsent)
    assert is_outcome_unknown(sent)
    assert not is_outcome_unknown(unsent)
    assert "not known" in sent.message


def test_a_server_fault_leaves_the_outcome_open():
    assert is_outcome_unknown(told("InternalError", status=500))
    assert not is_outcome_unknown(told("Throttling", status=503))


def test_a_refusal_after_silence_settles_it_only_when_the_product_itself_refused():
    def after_silence(code: str) -> Error:
        failure = Refused(code, "no")
        failure.is_after_silence = True
        return explain(failure, CONTEXT)

    assert not is_outcome_unknown(after_silence("OperationDenied.NoStock"))
    for code in ("Throttling.User", "Forbidden.RAM", "InvalidAccessKeyId.NotFound", "Who.Knows", *BUSY):
        assert is_outcome_unknown(after_silence(code)), code
        assert not proves_nothing_was_made(after_silence(code)), code


@pytest.mark.parametrize(
    "code",
    [
        "OperationDenied.NoStock",
        "Zone.NotOnSale",
        "InvalidVSwitchId.IpNotEnough",
        "QuotaExceed.ElasticQuota",
        "OperationDenied.SpotPriceLowerThanPublicPrice",
        "InvalidInstanceType.ValueNotSupported",
        "Some.Other.NoStock",
    ],
)
def test_another_place_is_tried_when_this_one_has_none(code):
    assert is_worth_another_place(told(code))


@pytest.mark.parametrize(
    "code", ["InsufficientBalance", "InvalidImageId.NotFound", "Who.Knows", "Throttling"]
)
def test_no_other_place_is_tried_when_it_would_fail_the_same_way(code):
    assert not is_worth_another_place(told(code))
    assert not is_worth_another_place(ValueError("not ours"))


def test_a_row_is_found_by_family_when_the_code_has_none_of_its_own():
    assert find_row("InvalidSecurityToken.Strange") is not None
    assert find_row("") is None
    assert find_row("Nothing.Like.It") is None
