"""An engine of PyTorch Ignite with its checkpoint handler."""

import os
from pathlib import Path

import disturbance
import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver

FOLDER = Path(os.environ["DISTTRAIN_CHECKPOINT_DIR"])


def main(local_rank):
    model = idist.auto_model(torch.nn.Linear(8, 1))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.01))
    data = torch.utils.data.TensorDataset(torch.randn(40, 8))
    loader = idist.auto_dataloader(data, batch_size=4)

    def update(engine, batch):
        disturbance.at(engine.state.iteration)
        (inputs,) = batch
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    trainer = Engine(update)
    parts = {"model": model, "optimizer": optimizer, "trainer": trainer}
    saver = Checkpoint(parts, DiskSaver(str(FOLDER), require_empty=False), n_saved=2)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=5), saver)
    saved = sorted(FOLDER.glob("*.pt"), key=lambda path: path.stat().st_mtime)
    if saved:
        Checkpoint.load_objects(parts, torch.load(saved[-1], map_location="cpu"))
    first = trainer.state.iteration
    trainer.run(loader, max_epochs=2, epoch_length=10)
    if idist.get_rank() == 0:
        disturbance.finished(first, trainer.state.iteration, trainer.state.output)


with idist.Parallel(backend="gloo") as parallel:
    parallel.run(main)
