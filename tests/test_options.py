"""Options: names, environment, what is said of a wrong one."""

from __future__ import annotations

from dataclasses import fields

import pytest

from flashlight.options import Options, divide, environment_name, from_environment, names


def test_every_option_is_documented() -> None:
    for f in fields(Options):
        assert f.metadata["doc"].endswith(".")
        assert isinstance(f.metadata["affects_code"], bool)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHLIGHT_STRICT", "1")
    monkeypatch.setenv("FLASHLIGHT_TUNE", "off")
    monkeypatch.setenv("FLASHLIGHT_DEBUG", "3")
    found = from_environment({"tune": "max"})
    assert (found.strict, found.tune, found.debug) == (True, "max", 3)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("strict", "perhaps", "FLASHLIGHT_STRICT is 'perhaps', expected 0 or 1."),
        ("debug", "much", "FLASHLIGHT_DEBUG is 'much', expected a number."),
        ("tune", "slow", "Option 'tune' has the value 'slow', expected one of off, quick, max."),
    ],
)
def test_wrong_environment(
    name: str, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment_name(name), text)
    with pytest.raises(ValueError, match=r".") as error:
        from_environment()
    assert str(error.value) == message


def test_options_are_divided() -> None:
    ours, theirs = divide({"strict": True, "max_autotune": True}, {"max_autotune"})
    assert (ours, theirs) == ({"strict": True}, {"max_autotune": True})


def test_unknown_option() -> None:
    with pytest.raises(ValueError, match=r"Unknown option 'strickt'\. Did you mean 'strict'\?"):
        divide({"strickt": True}, {"max_autotune"})


def test_wrong_type() -> None:
    with pytest.raises(ValueError, match=r"Option 'strict' is 'yes', expected bool\."):
        from_environment({"strict": "yes"})


def test_code_key_changes_with_what_affects_code() -> None:
    keys = {Options().code_key(), Options(sdpa=False).code_key(), Options(tune="off").code_key()}
    assert len(keys) == 3
    assert Options(debug=2).code_key() == Options().code_key()


def test_names() -> None:
    assert set(names()) >= {
        "strict",
        "sdpa",
        "tune",
        "verify",
        "debug",
        "dump",
    }
