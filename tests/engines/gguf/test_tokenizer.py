"""The tokenizer from GGUF metadata: special tokens, BOS and EOS, the ids that end an answer, and what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from engines.errors import CheckpointError, UnsupportedModel
from engines.gguf.tokenizer import GgufTokenizer
from engines.gguf.tokenizers.vocabulary import TokenType
from engines.header import read_header
from tests.engines.gguf.helpers_tokenizers import (
    CONTROL,
    CORPUS,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    bpe_metadata,
    gpt2_reference,
    spm_metadata,
    spm_reference,
)


def letters(*specials: tuple[str, int], **changes: Any) -> dict[str, Any]:
    """A SentencePiece tokenizer whose normal tokens are the letters a to z, "ab", and the space; the specials come first."""
    tokens = [text for text, _ in specials] + ["▁", *"abcdefghijklmnopqrstuvwxyz", "ab"]
    values: dict[str, Any] = {
        "model": "llama",
        "tokens": tokens,
        "scores": [-float(place) for place in range(len(tokens))],
        "token_type": [kind for _, kind in specials] + [NORMAL] * (len(tokens) - len(specials)),
        "add_space_prefix": False,
        "add_bos_token": False,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (values | changes).items() if value is not None}


CHATML = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("<|im_end|>", CONTROL), ("<b>", USER_DEFINED), ("<pad>", UNUSED)]


def texts(tokenizer: GgufTokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(id) for id in ids]


def test_encode_finds_control_tokens_only_when_asked_to() -> None:
    tokenizer = GgufTokenizer.from_metadata(letters(*CHATML))
    assert texts(tokenizer, tokenizer.encode("abc<|im_end|>", parse_special=True)) == ["ab", "c", "<|im_end|>"]
    assert texts(tokenizer, tokenizer.encode("abc<|im_end|>")[:2]) == ["ab", "c"]
    assert 2 not in tokenizer.encode("abc<|im_end|>")


def test_encode_finds_user_defined_tokens_always() -> None:
    tokenizer = GgufTokenizer.from_metadata(letters(*CHATML))
    assert texts(tokenizer, tokenizer.encode("a<b>b")) == ["a", "<b>", "b"]
    assert texts(tokenizer, tokenizer.encode("a<b>b", parse_special=True)) == ["a", "<b>", "b"]


def test_encode_takes_the_longest_special_of_the_leftmost_place() -> None:
    runs = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL), *((" " * n, USER_DEFINED) for n in (2, 3, 5))]
    tokenizer = GgufTokenizer.from_metadata(letters(*runs))
    assert texts(tokenizer, tokenizer.encode("a       b")) == ["a", "     ", "  ", "b"]
    assert texts(tokenizer, tokenizer.encode("a    b")) == ["a", "   ", "▁", "b"]


def test_encode_finds_special_tokens_of_one_character() -> None:
    lines = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL), ("\n", USER_DEFINED), ("\n\n\n", USER_DEFINED)]
    tokenizer = GgufTokenizer.from_metadata(letters(*lines))
    assert texts(tokenizer, tokenizer.encode("\na\n\nb\n\n\n\n")) == ["\n", "a", "\n", "\n", "b", "\n\n\n", "\n"]


def test_merges_never_make_a_control_token() -> None:
    """ "abc" could be merged of "ab" and "c", and is a control token here: text must not become one."""
    tokenizer = GgufTokenizer.from_metadata(letters(("<unk>", UNKNOWN), ("<s>", CONTROL), ("abc", CONTROL)))
    assert texts(tokenizer, tokenizer.encode("abc")) == ["ab", "c"]
    assert texts(tokenizer, tokenizer.encode("abc", parse_special=True)) == ["abc"]


def test_byte_level_merges_never_make_a_control_token() -> None:
    metadata = bpe_metadata(gpt2_reference())
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    made = tokens.index("Ġthe")
    types[made] = CONTROL
    for pre in ("gpt-2", "llama-bpe"):  # the second takes a whole word that is a token without merging
        tokenizer = GgufTokenizer.from_metadata(
            metadata | {"tokenizer.ggml.pre": pre, "tokenizer.ggml.bos_token_id": 0}
        )
        ids = tokenizer.encode(" the", add_bos=False)
        assert made not in ids
        assert b"".join(map(tokenizer.token_bytes, ids)) == b" the"


def test_guarded_text_is_encoded_as_text() -> None:
    tokenizer = GgufTokenizer.from_metadata(letters(*CHATML, ("im", CONTROL)))
    guarded = tokenizer.guarded("ab<|im_end|>c<s>", "\ufdd0")
    assert guarded.replace("\ufdd0", "") == "ab<|im_end|>c<s>"
    mixed = tokenizer.encode(guarded + "<|im_end|>", parse_special=True, guard="\ufdd0")
    assert mixed == [*tokenizer.encode("ab<|im_end|>c<s>"), 2]


@pytest.mark.parametrize(
    ("says", "asked", "expected"),
    [
        (None, None, True),
        (True, None, True),
        (False, None, False),
        (True, False, False),
        (False, True, True),
    ],
)
def test_bos_follows_the_file_unless_told_otherwise(says: bool | None, asked: bool | None, expected: bool) -> None:
    tokenizer = GgufTokenizer.from_metadata(letters(*CHATML, add_bos_token=says))
    assert (tokenizer.encode("a", add_bos=asked)[0] == 1) is expected


def test_bos_of_byte_level_models_defaults_by_pre_tokenizer() -> None:
    trained = gpt2_reference()
    for pre, expected in (("gpt-2", False), ("qwen2", False), ("smollm", False), ("llama-bpe", True), ("tekken", True)):
        assert GgufTokenizer.from_metadata(bpe_metadata(trained, pre=pre, bos_token_id=0)).add_bos is expected, pre


def test_bos_is_not_added_where_the_file_names_none() -> None:
    tokenizer = GgufTokenizer.from_metadata(bpe_metadata(gpt2_reference(), pre="llama-bpe"))
    assert tokenizer.bos_id is None
    assert 0 not in tokenizer.encode("the", add_bos=True)


def test_eos_is_added_only_when_asked_for() -> None:
    tokenizer = GgufTokenizer.from_metadata(letters(*CHATML, add_eos_token=True))
    assert tokenizer.encode("a")[-1] != 2
    assert tokenizer.encode("a", add_eos=None)[-1] == 2
    assert tokenizer.encode("a", add_eos=True)[-1] == 2
    silent = GgufTokenizer.from_metadata(letters(*CHATML))
    assert silent.encode("a", add_eos=None)[-1] != 2


def test_sentencepiece_ids_default_to_its_own() -> None:
    tokenizer = GgufTokenizer.from_metadata(letters(*CHATML))
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    assert tokenizer.special_texts() == {"bos_token": "<s>", "eos_token": "<|im_end|>", "unk_token": "<unk>"}


def test_special_ids_outside_of_the_vocabulary_are_ignored() -> None:
    tokenizer = GgufTokenizer.from_metadata(letters(*CHATML, bos_token_id=10**6, padding_token_id=-1))
    assert tokenizer.bos_id is None
    assert "pad_token" not in tokenizer.special_texts()


def test_eos_ids_are_eos_eot_eom_and_the_known_ends_of_turn() -> None:
    specials = [
        ("<unk>", UNKNOWN),
        ("<s>", CONTROL),
        ("</s>", CONTROL),
        ("<|eot_id|>", CONTROL),
        ("<end_of_turn>", CONTROL),
        ("<|start_header_id|>", CONTROL),
        ("<stop>", CONTROL),
        ("<more>", CONTROL),
    ]
    tokenizer = GgufTokenizer.from_metadata(letters(*specials, eot_token_id=6, eom_token_id=7))
    assert tokenizer.eos_ids == {2, 3, 4, 6, 7}


def test_eos_ids_leave_out_html_that_looks_like_an_end() -> None:
    """Gemma has "</s>" as the user-defined token of struck-through text."""
    specials = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("<eos>", CONTROL), ("</s>", USER_DEFINED)]
    tokenizer = GgufTokenizer.from_metadata(letters(*specials))
    assert tokenizer.eos_ids == {2}
    assert tokenizer.decode([3]) == "</s>"


def test_eos_ids_leave_out_the_end_of_a_harmony_message() -> None:
    specials = [(text, CONTROL) for text in ("<unk>", "<s>", "<|return|>", "<|call|>", "<|end|>")]
    assert GgufTokenizer.from_metadata(letters(*specials)).eos_ids == {2, 3}


def test_eos_ids_leave_out_the_end_of_a_solar_message() -> None:
    specials = [(text, CONTROL) for text in ("<unk>", "<s>", "<|flush|>", "<|calls|>", "<|end|>")]
    assert GgufTokenizer.from_metadata(letters(*specials)).eos_ids == {2, 3}


def test_eos_ids_have_what_follows_a_filled_gap() -> None:
    specials = [
        ("<unk>", UNKNOWN),
        *((text, CONTROL) for text in ("<s>", "</s>", "<reponame>", "<gap>", "<repo>", "<file>")),
    ]
    named = {"fim_pad_token_id": 4, "fim_rep_token_id": 5, "fim_sep_token_id": 6}
    assert GgufTokenizer.from_metadata(letters(*specials, **named)).eos_ids == {2, 3, 4, 5, 6}
    prose = [*specials[:3], ("<reponame>", NORMAL)]
    assert GgufTokenizer.from_metadata(letters(*prose)).eos_ids == {2}


def test_an_end_of_turn_of_the_wrong_type_is_a_control_token() -> None:
    specials = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL), ("<|im_end|>", USER_DEFINED)]
    tokenizer = GgufTokenizer.from_metadata(letters(*specials))
    assert tokenizer.eos_ids == {2, 3}
    assert 3 in tokenizer.special_ids
    assert 3 not in tokenizer.encode("<|im_end|>")


def test_a_file_without_token_types_has_its_end_of_turn_all_the_same() -> None:
    tokenizer = GgufTokenizer.from_metadata(letters(*CHATML, token_type=None))
    assert tokenizer.eos_ids == {2}
    assert tokenizer.encode("ab<|im_end|>", parse_special=True)[-1] == 2


def test_phi3_control_tokens_take_the_whitespace_after_them() -> None:
    specials = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("<|end|>", CONTROL), ("<|user|>", CONTROL), ("\n", USER_DEFINED)]
    metadata = letters(*specials) | {"general.architecture": "phi3"}
    tokenizer = GgufTokenizer.from_metadata(metadata)
    assert texts(tokenizer, tokenizer.encode("<|user|>\n ab<s>\n", parse_special=True)) == [
        "<|user|>",
        "ab",
        "<s>",
        "\n",
    ]
    other = GgufTokenizer.from_metadata(metadata | {"general.architecture": "llama"})
    assert texts(other, other.encode("<|user|>\nab", parse_special=True)) == ["<|user|>", "\n", "ab"]


def test_decode_leaves_control_tokens_out_unless_asked() -> None:
    tokenizer = GgufTokenizer.from_metadata(letters(*CHATML))
    ids = [1, *tokenizer.encode("ab"), 3, 2, 4]
    assert tokenizer.decode(ids) == "ab<b>"
    assert tokenizer.decode(ids, skip_special=False) == "<s>ab<b><|im_end|>"


def test_decode_refuses_ids_outside_of_the_vocabulary() -> None:
    tokenizer = GgufTokenizer.from_metadata(letters(*CHATML))
    for id in (-1, tokenizer.vocab_size):
        with pytest.raises(IndexError, match="outside of the vocabulary"):
            tokenizer.decode([id])
        with pytest.raises(IndexError):
            tokenizer.token_text(id)


def test_encode_turns_lone_surrogates_into_replacement_characters() -> None:
    tokenizer = GgufTokenizer.from_metadata(bpe_metadata(gpt2_reference()))
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"
    assert tokenizer.decode(tokenizer.encode("\ud83d\ude42")) == "\U0001f642"


def test_templates_are_found_by_name() -> None:
    templates = {
        "tokenizer.chat_template": "main",
        "tokenizer.chat_template.tool_use": "tools",
        "tokenizer.chat_template.empty": " ",
        "tokenizer.chat_templates": ["tool_use"],
    }
    tokenizer = GgufTokenizer.from_metadata(letters(*CHATML) | templates)
    assert tokenizer.chat_template == "main"
    assert tokenizer.templates == {"default": "main", "tool_use": "tools"}
    assert GgufTokenizer.from_metadata(letters(*CHATML)).chat_template is None


@pytest.mark.parametrize(
    ("changes", "error", "names"),
    [
        ({"model": None}, CheckpointError, "tokenizer.ggml.model is missing"),
        ({"model": "heard"}, UnsupportedModel, "'heard'.*supported are bert, gemma4, gpt2"),
        ({"model": "none"}, UnsupportedModel, "says that it has no tokenizer.*'none'.*convert the model again"),
        ({"model": "bert"}, CheckpointError, "unknown_token_id is missing"),
        ({"model": "t5", "scores": None}, CheckpointError, "scores is missing"),
        ({"model": "plamo2"}, CheckpointError, "no token for the byte 0x00"),
        ({"tokens": None}, CheckpointError, "tokenizer.ggml.tokens is missing"),
        ({"tokens": []}, CheckpointError, "empty"),
        ({"tokens": [1, 2]}, CheckpointError, "int"),
        ({"tokens": "abc"}, CheckpointError, "not an array"),
        ({"token_type": [1]}, CheckpointError, "token_type has 1 entries"),
        ({"scores": [1.0]}, CheckpointError, "scores has 1 entries"),
        ({"scores": None}, CheckpointError, "scores is missing"),
        ({"model": "gpt2", "pre": "never-heard"}, UnsupportedModel, "never-heard"),
        ({"model": "gpt2", "pre": "gpt-2", "scores": None}, CheckpointError, "merges is missing"),
        ({"model": "gpt2", "pre": "gpt-2", "merges": ["ab"]}, CheckpointError, "'ab'"),
    ],
)
def test_metadata_that_is_no_tokenizer_is_refused_by_name(
    changes: dict[str, Any], error: type[CheckpointError], names: str
) -> None:
    with pytest.raises(error, match=names):
        GgufTokenizer.from_metadata(letters(*CHATML, **changes))


def test_a_token_longer_than_any_is_refused_by_name_unless_it_is_found_apart() -> None:
    metadata = spm_metadata(spm_reference())
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    longer = metadata | {
        "tokenizer.ggml.tokens": [*tokens, "y" * 2000],
        "tokenizer.ggml.scores": [*metadata["tokenizer.ggml.scores"], -1.0],
    }
    with pytest.raises(CheckpointError, match=rf"tokens\[{len(tokens)}\] has more than 1024 characters"):
        GgufTokenizer.from_metadata(longer | {"tokenizer.ggml.token_type": [*types, TokenType.NORMAL]})
    found = GgufTokenizer.from_metadata(longer | {"tokenizer.ggml.token_type": [*types, TokenType.USER_DEFINED]})
    assert found.encode("y" * 2000, add_bos=False) == [len(tokens)]


def test_merges_without_tokens_are_left_out() -> None:
    """Converters leave such merges behind when they cut a vocabulary down."""
    metadata = bpe_metadata(gpt2_reference())
    whole = GgufTokenizer.from_metadata(metadata)
    merges = [*metadata["tokenizer.ggml.merges"], "Ġthe zzz", "q ÿ"]
    more = GgufTokenizer.from_metadata(metadata | {"tokenizer.ggml.merges": merges})
    assert [more.encode(text) for text in CORPUS] == [whole.encode(text) for text in CORPUS]


@pytest.mark.parametrize("kind", ["bpe", "spm"])
def test_encode_gives_every_thread_the_same_ids(kind: str) -> None:
    metadata = bpe_metadata(gpt2_reference()) if kind == "bpe" else spm_metadata(spm_reference())
    tokenizer = GgufTokenizer.from_metadata(metadata)
    prompts = [text[start:] for text in CORPUS for start in range(0, 60, 3)]
    expected = [GgufTokenizer.from_metadata(metadata).encode(prompt) for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        for ids in pool.map(lambda _: [tokenizer.encode(prompt) for prompt in prompts], range(8)):
            assert ids == expected


def test_smollm2_file_gives_known_ids(smollm2_path: Path) -> None:
    tokenizer = GgufTokenizer.from_metadata(read_header(smollm2_path).metadata)
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (49152, 1, 2, False)
    assert tokenizer.eos_ids == {0, 2, 4}  # 4 is "<reponame>"
    assert tokenizer.encode("Hello, world!") == [19556, 28, 905, 17]
    assert tokenizer.encode("in 2024") == [254, 216, 34, 32, 34, 36]
    prompt = "<|im_start|>user\nhi<|im_end|>\n"
    assert tokenizer.encode(prompt, parse_special=True) == [1, 4093, 198, 6004, 2, 198]
    assert not set(tokenizer.encode(prompt)) & {1, 2}


def test_gemma_file_gives_known_ids(gemma_path: Path) -> None:
    tokenizer = GgufTokenizer.from_metadata(read_header(gemma_path).metadata)
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (262144, 2, 1, True)
    assert tokenizer.eos_ids == {1, 106}
    assert tokenizer.encode("Hello, world!\n\n  <table>") == [2, 9259, 236764, 1902, 236888, 108, 138, 168]
    prompt = "<start_of_turn>user\nhi<end_of_turn>\n"
    assert tokenizer.encode(prompt, parse_special=True) == [2, 105, 2364, 107, 2202, 106, 107]
    assert tokenizer.decode(tokenizer.encode(" 你好 🦙 été")) == " 你好 🦙 été"
    assert tokenizer.chat_template is None
