import pytest
from transformers import AutoTokenizer

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.data.chat_templates import NAMED
from cascade_rl.rl_stages.data.tokenizer import encode_demonstration, encode_prompt, load_tokenizer, train_tokenizer
from cascade_rl.rl_stages.tasks.demonstration import load_demonstrations
from cascade_rl.rl_stages.tasks.domains import DOMAINS

pytestmark = pytest.mark.slow

CHAT = ({"role": "user", "content": "What is 3 + 4?"}, {"role": "assistant", "content": "3 + 4 = \\boxed{7}"})
VOCABULARY = 1024  # of the tiny cascade


@pytest.fixture(scope="module")
def demonstrations():
    return {
        name: distinct(load_demonstrations(f"generate:{name}@0.5", count=5000, seed=0))
        for name in DOMAINS
        if DOMAINS[name].lessons and DOMAINS[name].verifier  # episodes: lessons/test_episode_lessons.py
    }


def distinct(rows):
    return list({str(row.messages): row.messages for row in rows}.values())


@pytest.fixture(scope="module")
def tokenizer(demonstrations):
    return train_tokenizer((chat for chats in demonstrations.values() for chat in chats), vocab_size=VOCABULARY)


def test_vocabulary_is_small_and_special_tokens_come_first(tokenizer):
    assert len(tokenizer) <= VOCABULARY
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [0, 1, 2]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 2)


def test_every_word_of_the_domains_is_one_token_and_lengths_are_bounded(tokenizer, demonstrations):
    for chats in demonstrations.values():
        for chat in chats:
            [(_, mask)] = encode_demonstration(tokenizer, chat)
            assert len(mask) <= 250  # of 320 that the tiny cascade's engines hold
            assert sum(mask) <= 31
            split = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(chat[-1]["content"])
            assert sum(mask) == len(split) + 1


@pytest.mark.parametrize(
    "text", ["It is unseen.", "naïve café, 漢字 \U0001f642\n\n\ttabs", " two  spaces ", "don't <<x>>"]
)
def test_any_text_round_trips(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_prompt_is_chatml_up_to_the_assistant(tokenizer):
    ids = encode_prompt(tokenizer, CHAT[:1])
    assert tokenizer.decode(ids) == "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n"
    assert ids[0] == 1


def test_only_the_answer_and_its_stop_token_are_learned(tokenizer):
    [(ids, mask)] = encode_demonstration(tokenizer, CHAT)
    assert ids[: mask.index(True)] == encode_prompt(tokenizer, CHAT[:1])
    learned = [token for token, learn in zip(ids, mask, strict=True) if learn]
    assert tokenizer.decode(learned) == "3 + 4 = \\boxed{7}<|im_end|>"
    assert mask == sorted(mask)


def test_a_saved_tokenizer_encodes_the_same(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert encode_demonstration(loaded, CHAT) == encode_demonstration(tokenizer, CHAT)
    assert (loaded.pad_token_id, loaded.eos_token_id, len(loaded)) == (0, 2, len(tokenizer))


def test_a_tokenizer_without_a_template_is_refused(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    bare = AutoTokenizer.from_pretrained(tmp_path)
    bare.chat_template = None
    with pytest.raises(UserError, match="chat template"):
        encode_prompt(bare, CHAT[:1])


def test_a_folder_is_read_with_the_named_template_or_its_own(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path, None).chat_template == tokenizer.chat_template
    assert load_tokenizer(tmp_path, NAMED["cascade2"]).chat_template == NAMED["cascade2"]
    with pytest.raises(UserError, match=r"opens the assistant's turn .* found one that ends with '\?' either way"):
        load_tokenizer(tmp_path, "{% for m in messages %}{{ m.content }}{% endfor %}")
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match=r"found none: name one in base\.chat_template"):
        load_tokenizer(tmp_path, None)


def test_the_template_is_asked_for_a_mode_or_refused(tokenizer, tmp_path):
    with pytest.raises(UserError, match="a chat template with a switch enable_thinking"):
        encode_prompt(tokenizer, CHAT[:1], thinking=True)
    tokenizer.save_pretrained(tmp_path)
    able = AutoTokenizer.from_pretrained(tmp_path)
    able.chat_template += "{{ '<think></think>' if enable_thinking is defined and not enable_thinking else '<think>' }}"
    plain = able.decode(encode_prompt(tokenizer, CHAT[:1]))
    found = {mode: able.decode(encode_prompt(able, CHAT[:1], thinking=mode)) for mode in (None, True, False)}
    assert found == {None: plain + "<think>", True: plain + "<think>", False: plain + "<think></think>"}


def test_tools_are_shown_to_the_model_or_refused(tokenizer, tmp_path):
    tools = [{"type": "function", "function": {"name": "pay", "parameters": {}}}]
    with pytest.raises(UserError, match="a chat template that shows tools"):
        encode_prompt(tokenizer, CHAT[:1], tools)
    tokenizer.save_pretrained(tmp_path)
    able = AutoTokenizer.from_pretrained(tmp_path)
    able.chat_template = "{% if tools %}{{ tools | tojson }}{% endif %}" + tokenizer.chat_template
    assert "pay" in able.decode(encode_prompt(able, CHAT[:1], tools)).replace(" ", "")
    assert encode_prompt(able, CHAT[:1]) == encode_prompt(tokenizer, CHAT[:1])
