"""Lightning's Trainer."""

from disttrain.integrations.lightning import fit

# isort: split
import os

import disturbance
import lightning as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint


class Regression(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def on_train_start(self):
        self.first = self.trainer.global_step

    def loss(self, inputs):
        return (self.layer(inputs) - inputs.sum(1, keepdim=True)).square().mean()

    def training_step(self, batch):
        disturbance.at(self.trainer.global_step + 1)
        return self.loss(*batch)

    def validation_step(self, batch):
        self.log("val_loss", self.loss(*batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


model = Regression()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(40, 8)), batch_size=2)
trainer = pl.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    strategy="ddp",
    max_steps=20,
    callbacks=[ModelCheckpoint(every_n_train_steps=5)],
    logger=False,
    enable_progress_bar=False,
)
fit(trainer, model, loader, loader)
if trainer.is_global_zero:
    disturbance.finished(model.first, trainer.global_step, trainer.callback_metrics["val_loss"].item())
