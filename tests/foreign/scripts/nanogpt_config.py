"""What a user of nanoGPT writes instead of options; its configurator executes it in train.py."""

import os

dataset = "made_up"
out_dir = "out"
init_from = "resume" if os.environ.get("PREFECT_FT_RESUME_FROM") else "scratch"
eval_interval = 50
eval_iters = 5
log_interval = 10
gradient_accumulation_steps = 2
batch_size = 8
block_size = 32
n_layer = 2
n_head = 2
n_embd = 64
learning_rate = 1e-3
max_iters = 300
lr_decay_iters = 300
min_lr = 1e-4
warmup_iters = 20
backend = "nccl" if os.environ.get("FOREIGN_ON_ONE_GPU") else "gloo"
dtype = "float32"
compile = False  # noqa: A001
