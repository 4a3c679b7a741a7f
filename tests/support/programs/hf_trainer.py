"""Hugging Face's Trainer with a tiny GPT-2 of random weights."""

from disttrain.integrations.huggingface import train

# isort: split
import disturbance
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Progress(TrainerCallback):
    def on_train_begin(self, args, state, control, **_):
        self.first = state.global_step

    def on_step_begin(self, args, state, control, **_):
        disturbance.at(state.global_step + 1)


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, at):
        tokens = torch.arange(at, at + 16) % 50
        return {"input_ids": tokens, "labels": tokens}


progress = Progress()
trainer = Trainer(
    GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2)),
    TrainingArguments(
        "elsewhere",
        per_device_train_batch_size=2,
        max_steps=20,
        save_steps=5,
        save_total_limit=2,
        eval_strategy="steps",
        eval_steps=10,
        logging_steps=2,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    ),
    train_dataset=Tokens(),
    eval_dataset=Tokens(),
    callbacks=[progress],
)
done = train(trainer)
if trainer.is_world_process_zero():
    disturbance.finished(progress.first, done.global_step, done.training_loss)
