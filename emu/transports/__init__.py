"""Transports: one protocol with RDMA's semantics, over TCP and over shared memory."""
