"""What a step of data-parallel training must take, by hand. Imports nothing: it is what measurements are held
against."""


def step_s(*, ranks, layers, layer_bytes, forward_s, backward_s, layers_per_bucket, link_bytes_per_s):
    """Seconds of a step of equal layers whose gradients travel in buckets, one by one around a ring.

    A bucket sets out when its last gradient is there and the bucket before it has arrived. Over a ring of N
    ranks every link carries 2 (N - 1) / N of a bucket's bytes. The optimizer takes nothing.
    """
    arrived_s = 0.0
    for bucket in range(layers // layers_per_bucket):
        ready_s = forward_s + backward_s * (bucket + 1) * layers_per_bucket / layers
        travels_s = 2 * (ranks - 1) / ranks * layers_per_bucket * layer_bytes / link_bytes_per_s
        arrived_s = max(arrived_s, ready_s) + travels_s
    return max(forward_s + backward_s, arrived_s)
