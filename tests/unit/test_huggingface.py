"""Hugging Face models from a local folder with weights and tokenizer, made here without a download."""

import pytest
import torch
from torch.utils.data import default_collate

from disttrain.config.sections.model import DataConfig, ModelConfig
from disttrain.data.source import Arrays, Source
from disttrain.engine.kinds import build_model, build_source
from disttrain.engine.objective import Task
from disttrain.records.dataset import DatasetRecord

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

TEXT = "the quick brown fox jumps over the lazy dog\n" * 60
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def save_tokenizer(folder) -> int:
    """A byte-level BPE tokenizer in `folder`; the size of its vocabulary."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<end>"],
        show_progress=False,
    )
    made.train_from_iterator([TEXT], trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")
    fast.save_pretrained(folder)
    return len(fast)


def trained(model, source, steps=12) -> list[float]:
    """The losses of some steps on one batch."""
    task = Task.of(source)
    batch = default_collate([source.train[i] for i in range(8)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = task.batch_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_causal_model_continues_from_its_folder(tmp_path):
    folder = tmp_path / "model"
    vocab = save_tokenizer(folder)
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model("llama", vocab_size=vocab, max_position_embeddings=32, **TINY)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    (tmp_path / "text.txt").write_text(TEXT)
    source = build_source(
        DataConfig(kind="text", path=str(tmp_path / "text.txt"), tokenizer=str(folder), seq_len=16)
    )
    assert source.classes == vocab
    assert source.bytes_per_token > 2, "merged bytes"
    model = build_model(ModelConfig(kind="huggingface", path=str(folder)), source)
    first = trained(model, source)
    assert first[-1] < 0.7 * first[0]
    model.model.save_pretrained(folder)
    again = trained(build_model(ModelConfig(kind="huggingface", path=str(folder)), source), source, steps=1)
    assert again[0] < 0.7 * first[0], "the weights of the folder, not new ones"


def test_a_sequence_classifier_continues_from_its_folder(tmp_path):
    torch.manual_seed(0)
    tokens = torch.randint(4, 50, (32, 8))
    record = DatasetRecord(name="parity", version=None, sha256=None, train_samples=32, valid_samples=0)
    data = Arrays(tokens, tokens[:, 0] % 3)
    source = Source(train=data, valid=None, task="classification", shape=(8,), classes=3, record=record)
    new = {"vocab_size": 50, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **TINY}
    model = build_model(ModelConfig(kind="huggingface", model_type="bert", config=new), source)
    first = trained(model, source, steps=30)
    assert first[-1] < 0.5 * first[0]
    model.model.save_pretrained(tmp_path)
    again = build_model(ModelConfig(kind="huggingface", path=str(tmp_path)), source)
    assert trained(again, source, steps=1)[0] < 0.5 * first[0]
    assert again(tokens).shape == (32, 3)
