"""Pipeline parallelism: a model in stages, one for each device."""
