"""DistributedDataParallel in a loop of its own."""

from disttrain.integrations import checkpoint_dir, stop_requested

# isort: split
import disturbance
import torch
import torch.distributed as dist

from disttrain import LoopTelemetry

PATH = checkpoint_dir() / "state.pt"
STEPS = 20

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
first = 0
if PATH.exists():
    saved = torch.load(PATH)
    model.load_state_dict(saved["model"])
    first = saved["step"]
with LoopTelemetry(None, model, optimizer, steps=STEPS, samples_per_step=4, resumed_step=first) as telemetry:
    for step in range(first + 1, STEPS + 1):
        disturbance.at(step)
        inputs = torch.randn(4, 8)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        telemetry.record_loss(loss)
        telemetry.step()
        stops = stop_requested()
        if step % 5 == 0 or stops:
            with telemetry.outside_steps():
                if dist.get_rank() == 0:
                    torch.save({"model": model.state_dict(), "step": step}, PATH.with_suffix(".new"))
                    PATH.with_suffix(".new").replace(PATH)
        if stops:
            break
if dist.get_rank() == 0 and step == STEPS:
    disturbance.finished(first, step, loss.item())
dist.destroy_process_group()
