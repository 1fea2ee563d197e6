"""Pipeline parallelism: a model partitioned into stages, one per device."""
