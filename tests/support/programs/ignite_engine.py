"""An engine of PyTorch Ignite with its checkpoint handler: `--output_dir`, `--resume_from`."""

import argparse

import disturbance
import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", required=True)
parser.add_argument("--resume_from")
args = parser.parse_args()


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
    saver = Checkpoint(parts, DiskSaver(args.output_dir, require_empty=False), n_saved=2)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=5), saver)
    if args.resume_from:
        Checkpoint.load_objects(parts, torch.load(args.resume_from, map_location="cpu"))
    first = trainer.state.iteration
    trainer.run(loader, max_epochs=2, epoch_length=10)
    if idist.get_rank() == 0:
        disturbance.finished(first, trainer.state.iteration, trainer.state.output)


with idist.Parallel(backend="gloo") as parallel:
    parallel.run(main)
