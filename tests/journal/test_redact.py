"""Redaction: what is written of a run holds no secrets, and the user's hook has its say."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from tests.journal.places import Place, place_of
from tests.journal.test_stores import HEADER, record

from mergepoint.engine.context import RunContext
from mergepoint.engine.runner import ChatRunner
from mergepoint.journal.call_records import CallRecord, record_to_plain
from mergepoint.journal.checked_lines import JournalError, encode
from mergepoint.journal.redact import MASK, encode_safe, mask, suspicious
from mergepoint.journal.stores import RunHeader
from mergepoint.journal.transcript import Transcript, read_transcript, write_transcript
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Step

# Made up, of the real forms: what is secret, and the text around it.
SECRETS = {
    "openai": ("sk-proj-Ab1Cd2Ef3Gh4Ij5Kl6Mn7Op8", "{}"),
    "openai old": ("sk-abcdefghijklmnopqrstuvwx", "key {}."),
    "anthropic": ("sk-ant-api03-Ab1_Cd2-Ef3Gh4Ij5", "'{}'"),
    "openrouter": ("sk-or-v1-0123456789abcdef0123", "({})"),
    "google": ("AIzaSyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q", "?key={}"),
    "github": ("ghp_0123456789abcdefABCDEF0123456789abcd", "{}"),
    "github fine": ("github_pat_11ABCDEFG0123456789_abcdef", "{}"),
    "gitlab": ("glpat-Ab1Cd2Ef3Gh4Ij5Kl6Mn", "{}"),
    "slack": ("xoxb-123456789012-Ab1Cd2Ef3", "{}"),
    "aws": ("AKIAIOSFODNN7EXAMPLE", "id {} there"),
    "aws session": ("ASIAIOSFODNN7EXAMPLE", "id={}"),
    "stripe": ("sk_live_0123456789abcdefABCDEF", "{}"),
    "hugging face": ("hf_abcdefghijABCDEFGHIJabcd", "{}"),
    "groq": ("gsk_abcdefghijABCDEFGHIJabcd", "{}"),
    "xai": ("xai-abcdefghijABCDEFGHIJabcd", "{}"),
    "perplexity": ("pplx-abcdefghijABCDEFGHIJabcd", "{}"),
    "langsmith": ("lsv2_pt_0123456789abcdef0123_0123", "{}"),
    "jwt": ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc_DEF-123", "{}"),
    "bearer": ("Ab1Cd2Ef3", "Authorization: Bearer {}"),
    "bearer alone": ("abcdefghijklmnopqrstuvwxyz", "a bearer {}"),
    "basic": ("dXNlcjpwYXNzd29yZDE=", '{{"authorization": "Basic {}"}}'),
    "api key": ("0123456789abcdef", "api_key={}"),
    "api key in code": ("0123456789abcdef", "client(api_key='{}')"),
    "api key in json": ("0123456789abcdef", '{{"x-api-key": "{}"}}'),
    "api key in words": ("0123456789abcdef", "API KEY: {}"),
    "access token": ("0123456789abcdef", "&access_token={}&x=1"),
    "password": ("hunter2hunter2", "host=db password={}"),
    "login": ("geheim", "postgresql://me:{}@db/x"),
    "token in a URL": ("abc123def456", "https://x.org/back?token={}&y=1"),
    "token": ("Ab1Cd2Ef3Gh4", "token={}"),
    "token in json": ("0123456789abcdef", '{{"token": "{}"}}'),
    "cookie": ("0123abc", "Cookie: session={}; theme=dark"),
    "second cookie": ("zzz", "cookie: a=b; sid={}"),
    "set-cookie": ("s%3AAbC.dEf1", "Set-Cookie: sid={}; Path=/; HttpOnly"),
    "set-cookie in json": ("s0123", '{{"set-cookie": "sid={}"}}'),
    "pwd": ("S3cret!pass", "Server=db;Uid=sa;Pwd={};Encrypt=yes"),
    "short pwd": ("hunter2", "pwd={}"),
    "aws session token": ("IQoJb3JpZ2luX2VjEJr//wEaCXVzLW1", "aws_session_token={}"),
    "aws session token alone": ("FwoGZXIvYXdzEJr//wEaCXVzLWVhc3Qt" * 3, "as {} there"),
    "aws security token": ("IQoJb3JpZ2luX2VjEJr%2F%2FwEaCXV1", "?X-Amz-Security-Token={}&X=1"),
    "google access": ("ya29.a0AfH6SMBx1y2z3A4b5C6d7E8f9", "{}"),
    "sendgrid": ("SG.aB1cD2eF3gH4iJ5kL6mN7o.aB1cD2eF3gH4iJ5kL6mN7oP8qR9sT0uV", "{}"),
    "npm": ("npm_aB1cD2eF3gH4iJ5kL6mN7oP8qR9sT0uV1wX2", "{}"),
    "pypi": ("pypi-AgEIcHlwaS5vcmcCJDAwMDAwMDAwLTAwMDAtMDAwMC0", "{}"),
    "slack app": ("xapp-1-A0123456789-1234567890123-0123456789abcdef", "{}"),
    "slack webhook": ("T00000000/B00000000/" + "X" * 24, "https://hooks.slack.com/services/{}"),
    "stripe webhook": ("whsec_aB1cD2eF3gH4iJ5kL6mN7oP8qR9sT0uV", "{}"),
    "azure storage": ("aB1cD2eF3gH4iJ5kL6mN7o+/8qR9==", "AccountName=x;AccountKey={};Suffix=y"),
    "azure bus": ("aB1cD2eF3gH4iJ5kL6mN7oP8=", "Endpoint=sb://x/;SharedAccessKey={}"),
    "databricks": ("dapi0123456789abcdef0123456789abcdef", "{}"),
    "replicate": ("r8_aB1cD2eF3gH4iJ5kL6mN7oP8qR9sT0uV1wX2y", "{}"),
    "digitalocean": ("dop_v1_" + "0123456789abcdef" * 4, "{}"),
    "login with a slash": ("p/w", "postgresql://me:{}@db/x"),
    "login with quotes": ("p'w\"d", "postgresql://me:{}@db/x"),
    "login with an at sign": ("p@w", "amqp://me:{}@db/x"),
    "private key": ("MIIEvQIBADANBg\nkqhkiG9w0", "-----BEGIN RSA PRIVATE KEY-----\n{}"),
}

HARMLESS = [
    "a task-oriented risk-averse desk-bound clerk in Asia wrote sk-learn",
    "api_key=os.environ['OPENAI_API_KEY'], api_key=None, api_key: str",
    "the bearer of this letter has a secret token and a password",
    "https://example.org/a:b/c?d=e@f user@example.org 12:30@noon",
    "input_tokens=12 max_tokens: 1000 authorization was given in 2026",
    "class sk_buff_head_init_class(skb): AKIA, AIza, eyJ, xoxb-, ghp_, hf_",
    "token = tokenizer.encode(text)[0]; token=self.tok2id; eos_token='</s>', token: str = ''",
    "token = next_token_1; token=tokens[i2]; the next token: 42; token=get_token2(x)",
    "tokens=1234567890 max_new_tokens=20480000 token_type_ids=0123456789",
    "Token: 2026-01-02, PWD=/home/ann/work2 pwd=~/x123456 cd $(pwd)",
    "Cookie: a small sweet biscuit. Cookies: 200 g flour; cookie = jar.get('x1')",
    "password: at least 8 characters, password=os.environ['PG_PASSWORD1']",
    "password=${DB_PASSWORD_1} password=<your-password-1> passwords: list[str]",
    'see http://localhost:8080/path and x@y.z; {"url": "http://a:80", "mail": "x@y.z"}',
    '<a href="http://a.b:8080">x@y.org</a> git+ssh://git@github.com:22/a/b@v1 https://h:443/@x',
    "npm_config_registry npm_package_version SG.1 r8_ dapi do_v1_ pypi-server whsec_ r8_int8",
    "docker://registry:5000/img@sha256:0123456789abcdef http://[::1]:8080/x@y",
]


@pytest.fixture(params=["files", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Yield an empty place for runs; rows of PostgreSQL are made as those of SQLite."""
    with place_of(request.param, tmp_path) as found:
        yield found


def everywhere(text: str) -> tuple[RunHeader, CallRecord]:
    """Return a header and a record with a text in every place that holds texts."""
    tool = {"name": "look", "args": {"id": text, "deep": [{"at": text}]}, "id": "c1"}
    message = AIMessage(
        content=[{"type": "text", "text": text}],
        tool_calls=[{**tool, "type": "tool_call"}],
        additional_kwargs={"reasoning": text},
        response_metadata={"note": text},
    )
    header = replace(
        HEADER,
        inputs={"topic": text, "deep": {"list": [text]}, text: 1},
        messages=(SystemMessage(text), HumanMessage([{"type": "text", "text": text}])),
    )
    one = record("a", message=message, lead=(SystemMessage(text),), params={"stop": [text]})
    one = replace(one, prompt=[{"type": "text", "text": text}], response=text)
    error = {"type": "AuthError", "message": f"refused: {text}"}
    return header, replace(one, error=error, kind="call", value=[text], messages=(message,))


@pytest.mark.parametrize("name", SECRETS)
def test_no_known_form_of_a_key_is_written(name: str, place: Place) -> None:
    """Wherever in header or record it stands, no byte of it is kept; in memory it stays."""
    secret, around = SECRETS[name]
    header, one = everywhere(around.format(secret))
    with place.store().create(header) as journal:
        journal.append(one)
        assert (journal.header, journal.records) == (header, (one,))
    kept = place.raw()
    assert json.dumps(secret)[1:-1].encode() not in kept
    assert MASK.encode() in kept
    found, records = place.store().read("r1")
    assert found.masked == ("inputs", "messages")
    assert records[0].masked == ("message", "messages", "response", "value")


@pytest.mark.parametrize("name", SECRETS)
def test_the_text_around_a_key_stays(name: str) -> None:
    """Masking takes the secret alone, and does it once: masking again changes nothing."""
    secret, around = SECRETS[name]
    text = f"Before. {around.format(secret)}"
    masked = mask(text)
    assert masked.startswith("Before. ")
    assert secret not in masked
    assert MASK in masked
    assert mask(masked) == masked
    assert suspicious(json.dumps(text).encode())


@pytest.mark.parametrize("text", HARMLESS)
def test_other_text_is_left_alone(text: str) -> None:
    """Words that look a little like keys are none."""
    assert mask(text) == text


@pytest.mark.parametrize("around", ["\ud83d {}", "{} \udc00", '{{"a": ["{}", "\ud83d"]}}'])
def test_text_that_is_no_utf_8_is_masked_too(around: str, place: Place) -> None:
    """Half a surrogate pair in a record hides no key from the search."""
    secret, _ = SECRETS["openai"]
    with place.store().create(HEADER) as journal:
        journal.append(replace(record("a"), response=around.format(secret)))
    assert secret.encode() not in place.raw()
    assert place.store().read("r1")[1][0].response == around.format(MASK)


def test_a_record_without_secrets_is_the_same_line() -> None:
    """It is written as it is, byte by byte."""
    plain = record_to_plain(record("a", message=AIMessage("Rain falls in Asia.")))
    assert encode_safe(plain, None) == encode(plain)


@pytest.mark.parametrize(
    "params",
    [
        {"extra_headers": {"Authorization": "tiny", "X-Team": "tiny"}},
        {"default_headers": {"x-api-key": "tiny"}},
        {"api_key": "tiny"},
        {"openai_api_key": "tiny"},
        {"client": {"access-token": "tiny", "cookie": ["tiny"]}},
        {"extra_body": [{"auth": {"password": "tiny"}}]},
        {"extra_body": {"code": "tiny", "deep": [{"note": "tiny"}]}},
        {"extra_query": {"code": "tiny"}},
        {"sessionToken": "tiny"},
    ],
)
def test_headers_and_their_like_are_never_written(params: dict[str, Any], place: Place) -> None:
    """What stands under such a name is masked whatever it looks like; the names stay."""
    message = AIMessage("x", response_metadata=dict(params), additional_kwargs=dict(params))
    one = record("a", params={**params, "max_tokens": 5}, message=message)
    with place.store().create(HEADER) as journal:
        journal.append(one)
    kept = place.raw()
    assert b"tiny" not in kept
    assert next(iter(params)).encode() in kept
    (found,) = place.store().read("r1")[1]
    assert found.params["max_tokens"] == 5
    assert found.masked == ()


def test_numbers_of_extra_parameters_stay(place: Place) -> None:
    """What a request adds to a provider's own loses its texts, and no number or switch."""
    extra = {"top_k": 40, "min_p": 0.1, "thinking": {"on": False, "why": None, "how": "long"}}
    with place.store().create(HEADER) as journal:
        journal.append(record("a", params={"extra_body": extra}))
    (found,) = place.store().read("r1")[1]
    kept = {"on": False, "why": None, "how": MASK}
    assert found.params == {"extra_body": {"top_k": 40, "min_p": 0.1, "thinking": kept}}


HOSTILE = (
    *("password=", "pwd=", "token=", "token = ", "cookie: a=", "; a=b", "://a:", "://", "@b"),
    *("eyJ", "eyJa.", "sk-", "-----BEGIN ", "-----END", "SG.", "IQoJ", "1//0", "xapp-", "a", "="),
    *(
        "Authorization: ",
        "bearer ",
        "hooks.slack.com/services/",
        "npm_",
        "a_",
        "a.",
        "api key",
        " ",
    ),
)


@pytest.mark.first_case
@pytest.mark.parametrize("one", HOSTILE)
def test_no_text_takes_more_than_its_length(one: str) -> None:
    """Four times the text takes about four times as long, however it is repeated."""

    def best(text: str) -> float:
        times = []
        for _ in range(3):
            begun = time.process_time()
            mask(text)
            times.append(time.process_time() - begun)
        return min(times)

    for other in ("", *HOSTILE[::4]):
        unit = one + other
        short, long = (unit * (size // len(unit)) for size in (4_000, 32_000))
        assert best(long) < 20 * max(best(short), 0.001), unit


def test_what_only_sounds_like_a_header_stays(place: Place) -> None:
    """Token counts, log probabilities of tokens and inputs of such names are no headers."""
    logprobs = {"content": [{"token": "Rain", "logprob": -0.5, "top_logprobs": []}]}
    message = AIMessage(
        "x",
        response_metadata={"logprobs": logprobs, "token_usage": {"prompt_tokens": 3}},
        usage_metadata={"input_tokens": 3, "output_tokens": 1, "total_tokens": 4},
    )
    header = replace(HEADER, inputs={"token": "Rain", "headers": "Title"})
    with place.store().create(header) as journal:
        journal.append(record("a", message=message, params={"max_token": 3}))
        assert place.store().read("r1") == (header, journal.records)


def test_the_hook_is_given_every_text_and_nothing_else(place: Place) -> None:
    """What it changes is changed wherever texts stand; ids, types and paths stay."""
    header, one = everywhere("Ann lives here")
    with place.store(redact=lambda text: text.replace("Ann", "N.")).create(header) as journal:
        journal.append(one)
        assert journal.records == (one,)
    wanted, expected = everywhere("N. lives here")
    found, (kept,) = place.store().read("r1")
    key = {"Ann lives here": 1}  # the names of inputs are the tree's
    inputs = {**wanted.inputs, **key}
    del inputs["N. lives here"]
    assert found == replace(wanted, inputs=inputs, masked=("inputs", "messages"))
    masked = ("message", "messages", "response", "value")
    assert kept == replace(expected, masked=masked)


def test_a_hook_may_change_everything(place: Place) -> None:
    """A journal whose every text was changed is read and gone on with."""
    header, one = everywhere("Ann")
    with place.store(redact=lambda _: "").create(header) as journal:
        journal.append(one)
    with place.store().open("r1") as journal:
        assert [found.path for found in journal.records] == ["a"]
        assert journal.header.tree == HEADER.tree
    assert b"Ann" not in place.raw().replace(b'"Ann":1', b"")


def test_keys_are_masked_behind_the_hook(place: Place) -> None:
    """What the hook gives is masked as well."""
    secret, _ = SECRETS["openai"]
    with place.store(redact=lambda text: f"{text} {secret}").create(HEADER) as journal:
        journal.append(record("a"))
    assert secret.encode() not in place.raw()


@pytest.mark.parametrize("hook", [lambda text: 1 // 0, lambda text: None])
def test_a_hook_that_fails_lets_nothing_be_written(hook: Any, place: Place) -> None:
    """The error names the hook; neither the record nor the run is half there."""
    with pytest.raises(JournalError, match=r"header of the run cannot be written: the redact hook"):
        place.store(redact=hook).create(HEADER)
    assert list(place.store().runs()) == []
    place.store().create(HEADER).close()
    with place.store(redact=hook).open("r1") as journal:
        with pytest.raises(JournalError, match="record of a cannot be written: the redact hook"):
            journal.append(record("a"))
        assert journal.records == ()


def test_an_image_is_left_whole(place: Place) -> None:
    """A picture's data has no keys in it by chance."""
    data = base64.b64encode(bytes(range(256)) * 200).decode()
    prompt: Any = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}]
    with place.store().create(HEADER) as journal:
        journal.append(replace(record("a"), prompt=prompt))
    assert place.store().read("r1")[1][0].prompt == prompt


def transcript_of(text: str) -> Transcript:
    """Return the transcript of a run whose conversation, call, text and output are a text."""
    ctx = RunContext(messages=[HumanMessage(text)], run_id="r1")
    step = Step(text, name="a", capture_key="a", params={"extra_headers": {"X-Team": "tiny"}})
    ChatRunner(ScriptedModel([text])).run(ctx, step)
    return ctx.transcript()


@pytest.mark.parametrize("name", SECRETS)
def test_transcripts_are_masked_as_journals_are(name: str, tmp_path: Path) -> None:
    """Conversation, calls, text and outputs of the file hold no byte of a secret."""
    secret, around = SECRETS[name]
    path = write_transcript(transcript_of(around.format(secret)), tmp_path / "t.json")
    kept = path.read_bytes()
    assert json.dumps(secret)[1:-1].encode() not in kept
    assert b"tiny" not in kept
    assert kept.count(MASK.encode()) > 5
    assert read_transcript(path).records[0].masked == ("response",)


def test_transcripts_go_through_the_hook(tmp_path: Path) -> None:
    """Texts of the whole run are changed, its error among them."""
    transcript = replace(
        transcript_of("Ann lives here"),
        error={"type": "E", "message": "Ann", "path": "a", "node": "a"},
    )
    path = write_transcript(
        transcript, tmp_path / "t.json", redact=lambda text: text.replace("Ann", "N.")
    )
    assert "Ann" not in path.read_text(encoding="utf-8")
    found = read_transcript(path)
    assert found.text == "N. lives here"
    assert found.outputs == {"a": "N. lives here"}
    assert found.error == {"type": "E", "message": "N.", "path": "a", "node": "a"}
