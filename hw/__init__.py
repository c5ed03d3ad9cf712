"""Hardware: GPUs and RDMA NICs."""
