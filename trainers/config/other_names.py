"""Names that other programs give to settings of this one, and earlier names here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Setting, or several of which one may be meant -> its names in other programs, and its
# earlier ones in this.
_NAMES = {
    "run_dir": "checkpoint_dir experiment_dir job_dir log_dir logdir model_dir name "
    "out out_dir output output_dir output_path run_name save_dir train_dir work_dir",
    "resume": "ckpt ckpt_path continue load restore resume_from resume_from_checkpoint",
    "seed": "random_seed rng rng_seed",
    "verbose": "debug log_level verbosity",
    "strategy": "distribute distribution distribution_strategy distributed strat",
    "num_replicas devices": "cpu cpus device gpu gpu_ids gpus gpus_per_node n_gpus "
    "ngpu ngpus nproc nproc_per_node num_devices num_gpu num_gpus num_towers towers",
    "num_workers": "hosts n_nodes nnodes nodes num_hosts num_machines num_nodes "
    "num_processes workers world_size",
    "num_ps": "num_servers parameter_servers ps servers",
    "intra_op_threads inter_op_threads": "num_threads",
    "train_steps": "iterations iters max_iters max_steps n_steps num_iterations "
    "num_steps num_train_steps steps training_steps",
    "epochs": "max_epochs n_epochs num_epochs num_train_epochs training_epochs",
    "global_batch_size": "bs train_batch_size",
    "gradient_accumulation_steps": "accum accum_steps accumulate "
    "accumulate_grad_batches grad_accum grad_accum_steps grad_accumulation_steps",
    "initial_weights": "checkpoint init init_checkpoint init_from load_weights "
    "pretrained pretrained_weights weights",
    "dtype": "amp bf16 dtype_policy float16 float32 float64 fp16 fp32 half "
    "mixed_precision precision",
    "jit_compile": "compile jit xla",
    "data_path": "data_dir data_root data_file dataset_dir dataset_path input_path "
    "train_data train_files",
    "optimizer": "opt optim",
    "learning_rate_schedule": "decay lr_decay lr_scheduler scheduler",
    "clip_global_norm": "clip clip_norm clipnorm global_clipnorm grad_clip "
    "grad_clip_norm gradient_clip gradient_clip_norm gradient_clip_val grad_norm "
    "max_grad_norm",
    "summary_every_steps": "log_every log_every_n_steps log_interval log_steps "
    "logging_steps",
    "checkpoint_every_steps": "checkpoint_every save_every save_interval save_steps",
    "eval_every_steps": "eval_interval eval_steps val_interval",
    "profile_steps": "profiler trace",
    "trackers": "logger mlflow tracker wandb",
    "gradient_reduction": "combine",
    "isolate_network": "confine_cluster",
    "num_microbatches": "micro_batches num_micro_batches",
    "pipeline_stages": "num_stages stages",
    "disable_layers": "switch_off",
    "replayable_random_numbers": "replayable_dropout",
    "emulated_bandwidth_mbit bandwidth_gbit": "bandwidth",
}

OTHER_NAMES: Mapping[str, Sequence[str]] = {
    name: meant.split() for meant, names in _NAMES.items() for name in names.split()
}
