"""Hugging Face models from a local folder with weights and tokenizer, made here without a download."""

import pytest
import torch
from torch.utils.data import default_collate

from disttrain.config.sections.model import DataConfig, ModelConfig
from disttrain.data.source import Arrays, Source
from disttrain.engine.kinds import build_model, build_source
from disttrain.engine.objective import Task
from disttrain.integrations.huggingface import newest_checkpoint
from disttrain.records.dataset import DatasetRecord
from disttrain.records.json_files import write_json

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

TEXT = "the quick brown fox jumps over the lazy dog\n" * 60
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def text_source(folder):
    """Tokens of a byte-level BPE tokenizer in `folder`, which has a model for them."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator([TEXT], tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<end>"], show_progress=False
    ))  # fmt: skip
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")
    fast.save_pretrained(folder)
    shape = transformers.AutoConfig.for_model(
        "llama", vocab_size=len(fast), max_position_embeddings=32, **TINY
    )
    transformers.AutoModelForCausalLM.from_config(shape).save_pretrained(folder)
    path = folder / "text.txt"
    path.write_text(TEXT)
    source = build_source(DataConfig(kind="text", path=str(path), tokenizer=str(folder), seq_len=16))
    assert source.classes == len(fast)
    assert source.bytes_per_token > 2, "merged bytes"
    return source, ModelConfig(kind="huggingface", path=str(folder))


def classes_source(folder):
    tokens = torch.randint(4, 50, (32, 8))
    record = DatasetRecord(name="parity")
    data = Arrays(tokens, tokens[:, 0] % 3)
    source = Source(train=data, valid=None, task="classification", shape=(8,), classes=3, record=record)
    options = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    return source, ModelConfig(
        kind="huggingface", model_type="bert", config={"vocab_size": 50, **options, **TINY}
    )


@pytest.mark.parametrize("make_source", [text_source, classes_source])
def test_a_model_continues_from_its_folder(tmp_path, make_source):
    torch.manual_seed(0)
    source, config = make_source(tmp_path)
    model, losses = build_model(config, source), []
    batch, optimizer = (
        default_collate([source.train[i] for i in range(8)]),
        torch.optim.AdamW(model.parameters(), 1e-2),
    )
    for _ in range(30):
        losses.append(Task.of(source).batch_loss(model, batch))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0]
    model.model.save_pretrained(tmp_path)
    again = build_model(ModelConfig(kind="huggingface", path=str(tmp_path)), source)
    assert Task.of(source).batch_loss(again, batch) < 0.7 * losses[0], (
        "the weights of the folder, not new ones"
    )
    assert again(batch[0]).shape == (8, *((16,) if source.task == "language" else ()), source.classes)


def test_the_newest_checkpoint_has_a_number(tmp_path):
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-best"):
        write_json(tmp_path / name / "trainer_state.json", {})
    assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")
