"""The registry file: what is accepted, and what each mistake is answered with."""

from pathlib import Path

import pytest

from gateway.machine import Machine
from gateway.registry.load import Registry, RegistryError, load_registry, parse_registry, single_model_registry

GIB = 1024**3
MACHINE = Machine("cpu", ram_bytes=16 * GIB, device_bytes=16 * GIB, cores=2)


def parse(text: str) -> Registry:
    return parse_registry(text, Path("registry.yaml"), machine=MACHINE)


def problem(text: str) -> str:
    with pytest.raises(RegistryError) as caught:
        parse(text)
    return str(caught.value)


def test_load_empty_file_gives_defaults() -> None:
    registry = parse("")
    assert registry.models == ()
    assert registry.settings.server.host == "127.0.0.1"
    assert registry.settings.server.max_audio_body_bytes == GIB
    assert registry.settings.memory.budget_bytes == MACHINE.auto_budget_bytes == int(0.7 * 16 * GIB)
    assert registry.settings.workers.cancel_timeout_s == 10


def test_load_shipped_registry_is_valid() -> None:
    shipped = Path(__file__).parents[3] / "registry.yaml"
    registry = load_registry(shipped, machine=MACHINE)
    assert [model.id for model in registry.models] == ["smollm2", "gemma-3-270m", "minilm"]
    assert registry.directory == shipped.parent


def test_load_model_policy_overrides_defaults() -> None:
    registry = parse(
        "defaults: {ttl_s: 5, pin: true}\n"
        'models: [{id: a, source: "sim:", simulate: {weights: 1GiB}, ttl_s: 7},'
        ' {id: b, source: "sim:", simulate: {weights: 2}}]'
    )
    policies = [model.policy(registry.defaults) for model in registry.models]
    assert [(policy.ttl_s, policy.pin) for policy in policies] == [(7, True), (5, True)]
    simulate = registry.models[0].simulate
    assert simulate is not None and simulate.weights == GIB


def test_load_api_keys_take_both_forms_and_hide_from_repr() -> None:
    server = parse("server: {api_keys: [alpha, {key: beta, scopes: [infer], concurrency: 3}]}").settings.server
    assert [key.key for key in server.api_keys] == ["alpha", "beta"]
    assert server.api_keys[0].scopes == {"infer", "admin"}
    assert server.api_keys[1].scopes == {"infer"}
    assert server.api_keys[1].concurrency == 3
    assert "alpha" not in repr(server)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("modles: []", "modles: unknown key; did you mean models?"),
        ("models: [{id: a, sorce: x}]", "models[0].sorce: unknown key; did you mean source?"),
        ("defaults: {ttl: 1}", "defaults.ttl: unknown key; did you mean ttl_s?"),
        ("server: {api_keys: [{key: a, scope: x}]}", "server.api_keys[0].scope: unknown key; did you mean scopes?"),
        ("models: [{id: a, source: x, kv_bits: 4}]", "models[0].kv_bits: not supported by this version"),
        ("server: {media_urls: public}", "server.media_urls: not supported by this version"),
        ("models: [{id: 'a b', source: x}]", "models[0].id: expected a name of letters, digits and"),
        ("models: [{id: 'a@b', source: x}]", "(found 'a@b')"),
        ("models: [{source: x}]", "models[0]: object missing required field `id`"),
        ("models: 3", "models: expected `array`, got `int` (found 3)"),
        ("server: {api_keys: [{key: k, scopes: [x]}]}", "server.api_keys[0].scopes[0]: expected one of infer, admin"),
        ("server: {api_keys: [{key: k, scopes: []}]}", "server.api_keys[0].scopes: expected `array` of length >= 1"),
        ("server: {port: 99999}", "server.port: expected `int` <= 65535 (found 99999)"),
        ("defaults: {ttl_s: .nan}", "defaults.ttl_s: expected a finite number"),
        ("defaults: {ttl_s: -1}", "defaults.ttl_s: expected `float` >= 0.0 (found -1)"),
        ("memory: {budget: 120%}", "memory.budget: expected a percentage above 0 and at most 100 (found '120%')"),
        ("memory: {budget: lots}", "memory.budget: expected auto, a percentage such as 80%, or a size such as 12GiB"),
        ('models: [{id: a, source: "sim:", simulate: {weights: 0}}]', "models[0].simulate.weights: expected a size"),
        ('models: [{id: a, source: "sim:"}]', "models[0].simulate: a 'sim:' model needs it"),
        ("models: [{id: a, source: f, simulate: {weights: 1}}]", "models[0].simulate: only a model with source"),
        ("models: [{id: a, source: x}, {id: b, source: y, aliases: [a]}]", "models[1].aliases[0]: 'a' is taken by"),
        ("a: 1\na: 2", "not valid YAML: key 'a' is there twice at line 2, column 1"),
        ("1: 2", "key 1 is not text"),
        ("- 1", "a registry file is a mapping"),
        ("{", "not valid YAML"),
        ("models: [{id: 2024-13-45, source: x}]", "not valid YAML: '2024-13-45' cannot be read as timestamp"),
        ("server: {port: !!int x}", "'x' cannot be read as int"),
        ('models: [{id: a, task: "\\ud800", source: x}]', "models[0].task: holds half a surrogate pair"),
        ('defaults: {ttl_s: 1, tool_syntax: "\\udc00"}', "defaults.tool_syntax: holds half a surrogate pair"),
        ("server: {host: !!timestamp x}", "'x' cannot be read as timestamp"),
        (f"server: {{port: {'9' * 5000}}}", "cannot be read as int"),
        (f"server: {{max_body: {'9' * 400}.5GiB}}", "server.max_body: expected a size"),
        ('models: [{id: "a\\n", source: x}]', "models[0].id: expected a name of"),
        ('server: {api_keys: [""]}', "server.api_keys[0]: expected a text of at least one"),
        ("server: {api_keys: [{key: ' k'}]}", "server.api_keys[0].key: expected a text of"),
        ("memory: {device: 8GiB}\nmodels: [{id: a, source: f.gguf}]", "'a' is real"),
    ],
)
def test_load_mistake_names_path_and_way_out(text: str, expected: str) -> None:
    message = problem(text)
    assert message.startswith("registry.yaml: ")
    assert expected in message


def test_load_finds_every_piece_with_a_mistake() -> None:
    text = (
        "server: {port: x, hots: a}\nmodels: [{id: a, source: x, ttl: 1}, {id: b}, {id: c, source: y}, {source: z}]\n"
        "profiles: {p: {sampling: {top_p: 2, topk: 1}}}\nmemry: {}"
    )
    with pytest.raises(RegistryError) as caught:
        parse(text)
    keys = [problem.key for problem in caught.value.problems]
    assert sorted(map(str, keys)) == [
        "memry", "models[0].ttl", "models[1]", "models[3]", "profiles.p.sampling.top_p", "profiles.p.sampling.topk",
        "server.hots", "server.port",
    ]  # fmt: skip
    assert caught.value.key == keys[0] == "memry"
    assert str(caught.value).endswith("(and 7 more: `innkeeper config check` lists them)")
    several = (
        "server: {port: -1, keepalive_s: 0, max_body: x, api_keys: [{key: k, scopes: [y]}]}\nmemory: {budget: 1, policy: mru}\n"
        "defaults: {ttl_s: .inf, sampling: {top_p: 2, seed: x}, scheduling: {retention: 2}}\n"
        "models: [{source: '', aliases: [a b, c], overrides: {reasoning: {effort: x}}, simulate: {load_s: -1}}]"
    )
    with pytest.raises(RegistryError) as caught:
        parse(several)
    assert [problem.key for problem in caught.value.problems] == [
        "models[0]", "models[0].source", "models[0].aliases[0]", "models[0].simulate", "models[0].simulate.load_s",
        "models[0].overrides.reasoning.effort", "server.port", "server.api_keys[0].scopes[0]", "server.keepalive_s",
        "server.max_body", "memory.policy", "defaults.ttl_s", "defaults.scheduling.retention", "defaults.sampling.top_p",
        "defaults.sampling.seed",
    ]  # fmt: skip
    same = "models: [{id: a, source: x}, {id: a, source: 'sim:'}]\nmemory: {budget: lots}"
    with pytest.raises(RegistryError) as caught:
        parse(same)
    assert [problem.key for problem in caught.value.problems] == ["models[1].id", "models[1].simulate", "memory.budget"]


def test_load_mistake_in_a_value_made_of_aliases_is_told_at_once() -> None:
    levels = "\n".join(f"  - &n{i} [{', '.join([f'*n{i - 1}'] * 9)}]" for i in range(1, 20))
    assert "server.host: expected `str`" in problem(f"server:\n  host:\n  - &n0 [x, x]\n{levels}")


def test_load_mistake_in_a_key_does_not_print_it() -> None:
    assert "s3cret" not in problem("server: {api_keys: [{key: s3cret, scopes: [everything]}]}")


def test_load_unreadable_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="cannot be read: No such file"):
        load_registry(tmp_path / "none.yaml", machine=MACHINE)
    (tmp_path / "binary.yaml").write_bytes(b"models: \xff")
    with pytest.raises(RegistryError, match="not UTF-8 at byte 8"):
        load_registry(tmp_path / "binary.yaml", machine=MACHINE)
    with pytest.raises(RegistryError, match="larger than"):  # it has no size, and no end
        load_registry("/dev/zero", machine=MACHINE)


def test_memory_budget_above_device_is_clamped_with_both_numbers() -> None:
    memory = parse("memory: {budget: 64GiB}").settings.memory
    assert memory.budget_bytes == 16 * GIB
    assert len(memory.warnings) == 1
    assert "64.0 GiB" in memory.warnings[0] and "16.0 GiB" in memory.warnings[0]


def test_memory_rehearsal_clamps_against_the_rehearsed_device() -> None:
    memory = parse("memory: {device: 128GiB, budget: 100GiB}").settings.memory
    assert (memory.budget_bytes, memory.device_bytes, memory.warnings) == (100 * GIB, 128 * GIB, ())
    assert parse("memory: {budget: 50%}").settings.memory.budget_bytes == 8 * GIB


def test_single_model_id_is_the_stem(tmp_path: Path) -> None:
    path = tmp_path / "My model-Q4_K-00001-of-00003.gguf"
    path.touch()
    registry = single_model_registry(path, machine=MACHINE)
    assert [model.id for model in registry.models] == ["My-model-Q4_K"]
    with pytest.raises(RegistryError, match="no such file"):
        single_model_registry(tmp_path / "none.gguf", machine=MACHINE)


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (Machine("metal", 64 * GIB, 48 * GIB, 8), int(0.95 * 48 * GIB)),
        (Machine("metal", 8 * GIB, 8 * GIB, 8), 6 * GIB),
        (Machine("cuda", 64 * GIB, 80 * GIB, 8), 72 * GIB),
        (Machine("cpu", 10 * GIB, 10 * GIB, 8), 7 * GIB),
    ],
)
def test_machine_auto_budget_follows_the_device(machine: Machine, expected: int) -> None:
    assert machine.auto_budget_bytes == expected
