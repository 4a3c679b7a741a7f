"""Lightning's Trainer, which saves on the stop signal by a handler that replaces Lightning's own."""

import json
import os
import signal
from pathlib import Path

import disturbance
import lightning as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

FOLDER = Path(os.environ["DISTTRAIN_CHECKPOINT_DIR"])


class Regression(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch):
        (inputs,) = batch
        disturbance.at(self.global_step + 1, lambda: stop.asked)
        loss = (self.layer(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class SaveOnSignal(pl.Callback):
    asked = False

    def on_train_start(self, trainer, module):
        self.first = trainer.global_step
        signal.signal(signal.SIGTERM, self.ask)  # Lightning has set its own handler before

    def ask(self, *_):
        self.asked = True

    def on_train_batch_end(self, trainer, module, outputs, batch, at):
        if trainer.strategy.reduce_boolean_decision(self.asked, all=False):  # all ranks at the same step
            trainer.save_checkpoint(FOLDER / "last.ckpt")
            trainer.should_stop = True


data = torch.utils.data.TensorDataset(torch.randn(40, 8))
periodic = ModelCheckpoint(FOLDER, "last", every_n_train_steps=5, enable_version_counter=False)
stop = SaveOnSignal()
trainer = pl.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    strategy="ddp",
    max_steps=20,
    callbacks=[stop, periodic],
    logger=False,
    enable_progress_bar=False,
)
saved = FOLDER / "last.ckpt"
trainer.fit(
    Regression(), torch.utils.data.DataLoader(data, batch_size=2), ckpt_path=saved if saved.exists() else None
)
if trainer.is_global_zero and trainer.global_step == 20:
    result = {"first": stop.first, "step": 20, "loss": trainer.callback_metrics["loss"].item()}
    Path("lightning_fit.json").write_text(json.dumps(result))
