"""Settings: who wins, what is refused and in which words, and what models are called."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.config import (
    OPTIONS,
    ConfigError,
    Option,
    Resolved,
    Settings,
    choose_models,
    resolve,
)
from ferrum_local.config.access import check_access
from ferrum_local.config.models import STARTER_FILE
from ferrum_local.config.places import user_config_dir, user_data_dir
from ferrum_local.config.resolve import FlagValue
from ferrum_local.config.show import markdown_table, print_config
from ferrum_local.config.values import Duration, Integer, to_toml
from ferrum_local.http.keys import parse_key_file
from ferrum_local.model_names import is_model_name, model_id_from_path

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"


class Desk:
    """A directory to run in, with no configuration of the user's own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def resolve(
        self,
        toml: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        **flags: FlagValue,
    ) -> Resolved:
        if toml is not None:
            data = toml if isinstance(toml, bytes) else toml.encode()
            (self.path / "ferrum.toml").write_bytes(data)
        variables = {"XDG_CONFIG_HOME": str(self.path / "config"), **(env or {})}
        return resolve(flags, variables, cwd=self.path)

    def refused(
        self,
        toml: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        **flags: FlagValue,
    ) -> str:
        with pytest.raises(ConfigError) as caught:
            self.resolve(toml, env, **flags)
        assert "\n" not in caught.value.message
        return caught.value.message

    def models(self, *arguments: str, alias: tuple[str, ...] = ()) -> dict[str, str]:
        chosen = choose_models(self.resolve(model=arguments, alias=alias), {})
        return {spec.id: os.path.basename(spec.path) for spec in chosen}

    def models_refused(self, *arguments: str, alias: tuple[str, ...] = ()) -> str:
        with pytest.raises(ConfigError) as caught:
            self.models(*arguments, alias=alias)
        return caught.value.message


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


# Who wins


def test_flag_beats_variable_beats_file_beats_default(desk: Desk) -> None:
    toml = "port = 1\nslots = 1\nmax_queue = 1"
    env = {"FERRUM_PORT": "2", "FERRUM_SLOTS": "2"}

    resolved = desk.resolve(toml, env, port="3")

    settings, sources = resolved.settings, resolved.sources
    assert (settings.port, settings.slots, settings.max_queue, settings.threads) == (3, 2, 1, None)
    assert str(sources["port"]) == "flag --port"
    assert str(sources["slots"]) == "env FERRUM_SLOTS"
    assert str(sources["max_queue"]) == f"file {desk.path / 'ferrum.toml'}"
    assert str(sources["threads"]) == "default"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_can_come_from_each_source(desk: Desk, option: Option) -> None:
    text = {
        "port": "9", "host": "nas.local", "alias": "a=b", "voice_name": "a=b",
        "flash_attn": "off", "kv_type": "q8_0",
        "cors_origin": "https://a.example", "log_format": "json", "log_level": "debug",
        "announce": "json", "any_model_name": "true", "speculate": "off",
        "embeddings_from_chat": "true", "allow_local_files": "true",
        "embedding_pooling": "cls", "embedding_prefix": "e5",
        "force": "true", "debug": "true", "ctx_size": "64", "exit_with_parent": "true",
        "exit_on_stdin_close": "true", "single_instance": "true", "insecure": "true",
        "allow_remote_media": "true", "offline": "true", "log_content": "true",
    }.get(option.field, "33")  # fmt: skip
    flag: FlagValue = (text,) if option.many else text

    from_flag = desk.resolve(**{option.field: flag})
    from_env = desk.resolve(env={option.env: text})
    from_file = desk.resolve(toml=f'{option.toml_key} = "{text}"')

    values = [
        getattr(resolved.settings, option.field) for resolved in (from_flag, from_env, from_file)
    ]
    assert values[0] == values[1] != option.default
    if not option.path:
        assert values[2] == values[0]


def test_the_table_and_the_settings_have_the_same_fields() -> None:
    assert [option.field for option in OPTIONS] == list(Settings.__struct_fields__)
    msgspec.convert({option.field: option.default for option in OPTIONS}, Settings)


def test_a_list_replaces_the_one_below_it(desk: Desk) -> None:
    resolved = desk.resolve('api_key = ["from-file"]', {"FERRUM_API_KEY": "a, b,"})
    assert resolved.settings.api_key == ("a", "b")


def test_a_switch_can_be_turned_off_again(desk: Desk) -> None:
    assert desk.resolve("any_model_name = true").settings.any_model_name is True
    assert desk.resolve(any_model_name=False).settings.any_model_name is False


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_booleans_in_variables(desk: Desk, text: str) -> None:
    assert desk.resolve(env={"FERRUM_ANY_MODEL_NAME": text}).settings.any_model_name is True


def test_an_empty_variable_is_no_variable(desk: Desk) -> None:
    assert desk.resolve(env={"FERRUM_PORT": ""}).settings.port == 8000


def test_an_empty_key_variable_does_not_open_the_server(desk: Desk) -> None:
    assert "set but empty" in desk.refused(env={"FERRUM_API_KEY": " "})
    assert "set but empty" in desk.refused(env={"FERRUM_API_KEY_FILE": ""})
    assert "set but empty" in desk.refused(env={"FERRUM_TOKEN_FILE": ""})
    assert "expected a key" in desk.refused(api_key=("",))


def test_a_misspelt_variable_is_remarked_upon(desk: Desk) -> None:
    notes = desk.resolve(env={"FERRUM_PROT": "1", "FERRUM_ELSE": "1"}).notes
    assert notes == ("FERRUM_PROT is not a known variable; did you mean FERRUM_PORT?",)


# The configuration file


def test_the_users_file_is_read_when_there_is_none_here(desk: Desk) -> None:
    folder = desk.path / "config" / "ferrum-local"
    folder.mkdir(parents=True)
    (folder / "ferrum.toml").write_text("port = 7")
    assert desk.resolve().settings.port == 7
    assert desk.resolve("slots = 2").settings.port == 8000


def test_a_named_file_replaces_both(desk: Desk) -> None:
    (desk.path / "ferrum.toml").write_text("port = 1")
    (desk.path / "other.toml").write_text("slots = 2")

    by_flag = resolve({}, {}, cwd=desk.path, config="other.toml")
    by_env = resolve({}, {"FERRUM_CONFIG": "'other.toml'"}, cwd=desk.path)

    assert by_flag.settings == by_env.settings
    assert (by_flag.settings.port, by_flag.settings.slots) == (8000, 2)
    with pytest.raises(ConfigError, match="--config: nowhere.toml: no such file"):
        resolve({}, {}, cwd=desk.path, config="nowhere.toml")


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("prot = 1", "unknown key 'prot'; did you mean 'port'?"),
        ("Ctx-Size = 1", "unknown key 'Ctx-Size'; did you mean 'ctx_size'?"),
        ("zzz = 1", "unknown key 'zzz'; known keys are alias,"),
        ("[serve]\nport = 1", "no sections are used; write what [serve] has at top level"),
        ("port = ", "is not valid TOML"),
        (r'model = "C:\Users\x.gguf"', "write Windows paths in single quotes"),
        (b"host = \xff", "is not UTF-8"),
        ("port = true", "ferrum.toml:port: expected a whole number from 0 to 65535, got True"),
        ("port = {}", "got a table"),
        ("port = [1]", "expected a whole number"),
        ("model = [1]", "ferrum.toml:model: expected a path"),
        ("model = 1979-05-27", "ferrum.toml:model: expected a path"),
        ("request_timeout = 1e999", "expected seconds"),
        ("request_timeout = nan", "expected seconds"),
        ("request_timeout = " + "9" * 400, "expected seconds"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_key(
    desk: Desk, toml: str | bytes, said: str
) -> None:
    message = desk.refused(toml)
    assert said in message and "ferrum.toml" in message


def test_a_byte_order_mark_is_fine(desk: Desk) -> None:
    assert desk.resolve(b"\xef\xbb\xbfport = 5").settings.port == 5


def test_cli_03_paths_in_a_file_are_from_its_directory_unquoted_and_expanded(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/željko")
    monkeypatch.setenv("USERPROFILE", "/home/željko")
    toml = """model = ["my models/模型.gguf", "~/m.gguf", "n=sub/x.gguf", '"quoted.gguf"']"""

    settings = desk.resolve(toml).settings

    home = os.path.expanduser("~")
    assert settings.model == (
        os.path.join(desk.path, "my models/模型.gguf"),
        os.path.join(home, "m.gguf"),
        "n=" + os.path.join(desk.path, "sub/x.gguf"),
        os.path.join(desk.path, "quoted.gguf"),
    )


def test_cli_03_quotes_in_a_variable_are_taken_off(desk: Desk) -> None:
    env = {"FERRUM_MODEL": "\"/a b.gguf\", n='/c.gguf'"}
    assert desk.resolve(env=env).settings.model == ("/a b.gguf", "n=/c.gguf")


def test_a_path_with_a_comma_in_a_variable_is_one_path_if_it_exists(desk: Desk) -> None:
    path = desk.path / "a,b.gguf"
    path.touch()
    assert desk.resolve(env={"FERRUM_MODEL": str(path)}).settings.model == (str(path),)
    assert len(desk.resolve(env={"FERRUM_MODEL": "/x,/y"}).settings.model) == 2


# Values


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"port": "x"}, "--port: expected a whole number from 0 to 65535, got 'x'"),
        ({"port": "65536"}, "--port: expected"),
        ({"port": "-1"}, "--port: expected"),
        ({"port": "٣"}, "--port: expected"),
        ({"gpu_layers": "some"}, "--gpu-layers: expected a whole number from 0 to 10000, or auto"),
        ({"flash_attn": "maybe"}, "--flash-attn: expected one of auto, on, off, got 'maybe'"),
        ({"kv_type": "q3"}, "--kv-type: expected one of f32, f16, bf16, q8_0"),
        ({"request_timeout_s": "soon"}, "--request-timeout: expected seconds, or a time like"),
        ({"request_timeout_s": "-5"}, "--request-timeout: expected"),
        ({"keep_alive_interval_s": "0"}, "--keep-alive-interval: expected"),
        ({"host": "http://x"}, "--host: expected a host name"),
        ({"host": "127.0.0.1:80"}, "--host: expected a host name"),
        ({"cors_origin": ("a.com",)}, "--cors-origin: expected an origin"),
        ({"cors_origin": ("https://a.com/path",)}, "--cors-origin: expected an origin"),
        ({"allowed_host": ("nas:80",)}, "--allowed-host: expected a host name"),
        ({"alias": ("x",)}, "--alias: expected ALIAS=MODEL"),
        ({"model": ("",)}, "--model: expected a path"),
    ],
)
def test_a_bad_flag_is_refused_in_one_line(
    desk: Desk, flags: dict[str, FlagValue], said: str
) -> None:
    assert said in desk.refused(**flags)


def test_a_bad_variable_is_named(desk: Desk) -> None:
    assert desk.refused(env={"FERRUM_SLOTS": "many"}).startswith("FERRUM_SLOTS: expected")


def test_a_bad_key_is_not_repeated(desk: Desk) -> None:
    assert "ge heim" not in desk.refused(api_key=("ge heim",))


@pytest.mark.parametrize(
    "host", ["localhost", "0.0.0.0", "::1", "[::1]", "::", "fe80::1%eth0", "n_a.b"]
)
def test_cli_02_hosts_pass_as_they_are(desk: Desk, host: str) -> None:
    assert desk.resolve(host=host).settings.host == host


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [("90", 90.0), ("2m", 120.0), ("1h30m", 5400.0), ("500ms", 0.5), ("1.5s", 1.5), ("2 m", 120.0),
     (90, 90.0), (0.5, 0.5), ("0", None), (0, None), ("none", None), ("None", None)],
)  # fmt: skip
def test_durations(raw: str | float, seconds: float | None) -> None:
    assert Duration(none_word="none").parse(raw) == seconds


@given(st.one_of(st.text(max_size=20), st.integers(), st.floats(), st.booleans()))
def test_any_value_is_parsed_or_refused(raw: str | int | float | bool) -> None:
    for option in OPTIONS:
        try:
            value = option.kind.parse(raw)
        except (ValueError, OverflowError):
            continue
        shown = to_toml(value, option.kind.none_word)
        assert "\n" not in shown


def test_whole_numbers_are_ascii_and_bounded() -> None:
    for text in ("1_000", "1.0", "0x10", "", "²"):
        with pytest.raises(ValueError):
            Integer(0, 10_000).parse(text)


# What is printed


def test_print_config_can_be_saved_and_read_back(desk: Desk) -> None:
    first = desk.resolve(
        model=('n=/tmp/a "b"\\c\n.gguf',), request_timeout_s="1500ms", threads="3",
        any_model_name=True, cors_origin=("https://a.b",), announce="json",
    )  # fmt: skip

    again = desk.resolve(print_config(first))

    assert again.settings == first.settings


def test_print_config_names_every_option_and_source_and_masks_keys(desk: Desk) -> None:
    text = print_config(desk.resolve(port="1", api_key=("hunter2", "hunter3")))

    for option in OPTIONS:
        assert any(
            line.lstrip("# ").startswith(option.toml_key) and "  # " in line
            for line in text.splitlines()
        )
    assert "# flag --port" in text
    assert "hunter" not in text
    assert '# api_key = ["********", "********"]' in text


def test_the_reference_in_the_docs_is_current() -> None:
    text = DOCS.read_text(encoding="utf-8")
    begin, end = "<!-- options:begin -->\n", "<!-- options:end -->"
    reference = text[text.index(begin) + len(begin) : text.index(end)].strip()
    assert reference == markdown_table().strip(), (
        "run: python -m ferrum_local.config.show docs/configuration.md"
    )


# Models and their names


def test_models_are_called_by_their_file_or_as_asked(desk: Desk) -> None:
    assert desk.models("/m/SmolLM2-135M-Instruct.Q4_1.gguf", "org/big:4b=x.gguf") == {
        "SmolLM2-135M-Instruct.Q4_1": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "org/big:4b": "x.gguf",
    }


def test_a_path_may_contain_an_equals_sign(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk.path)
    Path("a=b.gguf").touch()
    assert desk.models("a=b.gguf") == {"a-b": "a=b.gguf"}
    assert desk.models("n=a=b.gguf") == {"n": "a=b.gguf"}
    assert desk.models("/no/such=thing.gguf") == {"such-thing": "such=thing.gguf"}
    assert desk.models("missing=c.gguf") == {"missing": "c.gguf"}


def test_a_path_with_an_equals_sign_in_a_file_is_looked_up_beside_it(desk: Desk) -> None:
    (desk.path / "a=b.gguf").touch()
    settings = desk.resolve('model = "a=b.gguf"').settings
    assert settings.model == (str(desk.path / "a=b.gguf"),)


def test_two_models_of_one_name_are_refused_with_both_paths(desk: Desk) -> None:
    message = desk.models_refused("/a/m.gguf", "/b/m.gguf")
    assert "would be called 'm'" in message
    assert os.path.join("/a", "m.gguf") in message and os.path.join("/b", "m.gguf") in message
    assert desk.models("/a/m.gguf", "other=/b/m.gguf") == {"m": "m.gguf", "other": "m.gguf"}


def test_aliases_lead_to_models_and_nowhere_else(desk: Desk) -> None:
    resolved = desk.resolve(model=("a.gguf", "b.gguf"), alias=("gpt-4o=b", "mine=gpt-4o", "b=b"))
    assert [m.aliases for m in choose_models(resolved, {})] == [(), ("gpt-4o", "mine")]
    assert "there is only a" in desk.models_refused("a.gguf", alias=("x=nope",))
    assert "already the name of 'a'" in desk.models_refused("a.gguf", "b.gguf", alias=("a=b",))
    assert "cannot be used" in desk.models_refused("a.gguf", alias=("default=a",))
    assert "the first model" in desk.models_refused("default=a.gguf")


def test_a_projector_goes_with_an_embedding_model(desk: Desk) -> None:
    def projectors(*mmproj: str, embedding_model: tuple[str, ...] = ("a.gguf", "b.gguf")) -> object:
        resolved = desk.resolve(model=("c.gguf",), embedding_model=embedding_model, mmproj=mmproj)
        chosen = choose_models(resolved, {})
        return {m.id: os.path.basename(m.mmproj) for m in chosen if m.mmproj is not None}

    assert projectors() == {}
    assert projectors("p.gguf") == {"a": "p.gguf"}
    assert projectors("b=q.gguf", "p.gguf") == {"a": "p.gguf", "b": "q.gguf"}
    for wrong, reason in (
        (("c=p.gguf",), "an embedding model called 'c'; there is only a, b"),
        (("a=p.gguf", "q.gguf"), "'a' would have two projectors"),
    ):
        with pytest.raises(ConfigError, match=reason):
            projectors(*wrong)
    with pytest.raises(ConfigError, match="for an embedding model; there is none"):
        projectors("p.gguf", embedding_model=())


def test_the_starter_model_is_served_when_none_is_named(desk: Desk) -> None:
    folder = desk.path / "starters"
    folder.mkdir()
    (folder / STARTER_FILE).touch()

    (spec,) = choose_models(desk.resolve(env={"FERRUM_MODELS_DIR": str(folder)}), {})

    assert (spec.id, spec.aliases) == ("SmolLM2-135M-Instruct.Q4_1", ("smollm2",))
    assert spec.path == str(folder / STARTER_FILE)


def test_without_any_model_the_error_says_how_to_get_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk.path)
    with pytest.raises(ConfigError) as caught:
        choose_models(desk.resolve(models_dir=(str(desk.path),)), {"XDG_DATA_HOME": "/none"})
    assert "models pull" in caught.value.message and "--model PATH" in caught.value.message


@pytest.mark.parametrize(
    ("path", "model_id"),
    [
        ("/x/a.b.GGUF", "a.b"),
        ("C:\\m\\q.gguf", "q"),
        ("my model (1).gguf", "my-model-1"),
        ("模型.gguf", "模型"),
        ("big-00001-of-00003.gguf", "big"),
        ("default.gguf", "model"),
        (".gguf", "model"),
        ("a\nb.gguf", "a-b"),
    ],
)
def test_ids_from_file_names(path: str, model_id: str) -> None:
    assert model_id_from_path(path) == model_id


@given(st.text())
def test_an_id_from_any_file_name_is_a_name(path: str) -> None:
    assert is_model_name(model_id_from_path(path))


# Keys


def test_keys_come_from_flags_and_the_file_together(desk: Desk) -> None:
    keys = desk.path / "keys"
    keys.write_text("# mine\n one \n\ntwo\r\none\n", encoding="utf-8-sig")
    check_access(desk.resolve(api_key=("zero",), api_key_file=str(keys)))
    assert parse_key_file(keys.read_bytes()) == (
        ("line-2", "one"), ("line-4", "two"), ("line-5", "one"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"", "has no key"), (b"# none\n", "has no key"), (b"a b\n", "line 1"), (b"\xff\n", "UTF-8")],
)
def test_a_key_file_without_keys_is_refused(desk: Desk, data: bytes, said: str) -> None:
    keys = desk.path / "keys"
    keys.write_bytes(data)
    with pytest.raises(ConfigError, match=said) as caught:
        check_access(desk.resolve(api_key=("k",), api_key_file=str(keys)))
    assert "a b" not in caught.value.message


def test_a_missing_key_file_is_refused(desk: Desk) -> None:
    with pytest.raises(ConfigError, match="--api-key-file: .*cannot be read"):
        check_access(desk.resolve(api_key_file=str(desk.path / "none")))


def test_places_follow_the_platform() -> None:
    env = {"XDG_CONFIG_HOME": "/c", "XDG_DATA_HOME": "/d"}
    assert user_config_dir(env, "linux") == Path("/c/ferrum-local")
    assert user_data_dir(env, "linux") == Path("/d/ferrum-local")
    assert user_data_dir({"LOCALAPPDATA": "/l"}, "win32") == Path("/l/ferrum-local")
    assert user_config_dir({}, "darwin").parts[-3:] == (
        "Library", "Application Support", "ferrum-local",
    )  # fmt: skip
