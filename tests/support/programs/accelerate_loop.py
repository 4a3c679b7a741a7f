"""A loop with Accelerate, which saves its whole state."""

from disttrain.integrations import checkpoint_dir, stop_requested

# isort: split
import disturbance
import torch
from accelerate import Accelerator

FOLDER = checkpoint_dir()

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(8, 1)
data = torch.utils.data.TensorDataset(torch.randn(80, 8))
model, optimizer, loader = accelerator.prepare(
    model,
    torch.optim.SGD(model.parameters(), lr=0.01),
    torch.utils.data.DataLoader(data, batch_size=2),
)
saved = sorted(FOLDER.glob("step-*"))
first = int(saved[-1].name.removeprefix("step-")) if saved else 0
if saved:
    accelerator.load_state(str(saved[-1]))
for step, (inputs,) in enumerate(accelerator.skip_first_batches(loader, first), first + 1):
    disturbance.at(step)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    stops = stop_requested()
    if step % 5 == 0 or stops:
        accelerator.save_state(str(FOLDER / "new"))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            (FOLDER / "new").rename(FOLDER / f"step-{step:04d}")
    if stops:
        raise SystemExit
if accelerator.is_main_process:
    disturbance.finished(first, step, loss.item())
accelerator.end_training()
