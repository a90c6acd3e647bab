"""Damages checkpoints of many libraries and records what loading them prints: `python tests/damage_checkpoints.py`.

To be run by an interpreter that has the libraries, and zstandard; cases of those that it does not have are left
as they are recorded. Writes tests/decide/damaged.jsonl.zst, which test_classify_damaged.py reads: of each library
one output of a kind, shortened to frames and messages, with the paths of any installation.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

RECORDED = Path(__file__).parent / "decide" / "damaged.jsonl.zst"
LOAD_S = 120
FILES = 8
"""Of a checkpoint of many files, so many are damaged."""


class Case(NamedTuple):
    """A library: a script that saves into its working directory, and one that loads as users do."""

    name: str
    needs: tuple[str, ...]
    save: str
    load: str
    files: tuple[str, ...] = ("*",)


TORCH_MODEL = """\
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(2, 64)).sum().backward(); optimizer.step()
"""

JAX_STATE = """\
import jax, jax.numpy as jnp
state = {'params': {'w': jnp.arange(65536.0).reshape(256, 256), 'b': jnp.ones(256)}, 'step': 7}
"""

HF = """\
import os
os.environ.update(HF_HUB_OFFLINE='1', ACCELERATE_USE_CPU='1')
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
config = BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=37)
model = BertForSequenceClassification(config)
data = [{'input_ids': torch.arange(8), 'labels': torch.tensor(1)} for _ in range(16)]
def arguments(steps):
    return TrainingArguments('out', max_steps=steps, save_steps=2, per_device_train_batch_size=2,
        report_to=[], use_cpu=True, disable_tqdm=True, logging_steps=1)
"""

LIGHTNING = """\
import torch, lightning
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def training_step(self, batch, index): return self.layer(batch[0]).sum()
    def configure_optimizers(self): return torch.optim.Adam(self.parameters())
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 64)), batch_size=2)
def trainer(steps):
    return lightning.Trainer(max_steps=steps, accelerator='cpu', logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir='.', enable_checkpointing=False)
"""

ACCELERATE = """\
import os
os.environ["ACCELERATE_USE_CPU"] = "1"
from accelerate import Accelerator
"""

CASES = (
    Case(
        "torch",
        ("torch",),
        TORCH_MODEL
        + """\
torch.save({'model': model.state_dict(), 'optimizer': optimizer.state_dict(), 'step': 4}, 'step-4.pt')
""",
        TORCH_MODEL
        + """\
def load_checkpoint(path):
    return torch.load(path, map_location='cpu')
state = load_checkpoint('step-4.pt')
model.load_state_dict(state['model'])
optimizer.load_state_dict(state['optimizer'])
""",
    ),
    Case(
        "torch-unsafe",
        ("torch",),
        TORCH_MODEL
        + """\
torch.save({'model': model.state_dict(), 'step': 4}, 'step-4.pt')
""",
        TORCH_MODEL
        + """\
state = torch.load('step-4.pt', weights_only=False)
model.load_state_dict(state['model'])
""",
    ),
    Case(
        "torch-mmap",
        ("torch",),
        TORCH_MODEL
        + """\
torch.save({'model': model.state_dict(), 'step': 4}, 'step-4.pt')
""",
        TORCH_MODEL
        + """\
state = torch.load('step-4.pt', mmap=True)
model.load_state_dict(state['model'])
""",
    ),
    Case(
        "torch-legacy",
        ("torch",),
        TORCH_MODEL
        + """\
torch.save({'model': model.state_dict(), 'step': 4}, 'step-4.pt', _use_new_zipfile_serialization=False)
""",
        TORCH_MODEL
        + """\
state = torch.load('step-4.pt')
model.load_state_dict(state['model'])
""",
    ),
    Case(
        "torch-jit",
        ("torch",),
        TORCH_MODEL
        + """\
torch.jit.script(model).save('model.pt')
""",
        """\
import torch
model = torch.jit.load('model.pt')
""",
    ),
    Case(
        "torch-dcp",
        ("torch",),
        TORCH_MODEL
        + """\
import torch.distributed.checkpoint as dcp
dcp.save({'model': model.state_dict(), 'step': 4}, checkpoint_id='step-4')
""",
        TORCH_MODEL
        + """\
import torch.distributed.checkpoint as dcp
state = {'model': model.state_dict(), 'step': 0}
dcp.load(state, checkpoint_id='step-4')
""",
    ),
    Case(
        "safetensors",
        ("torch", "safetensors"),
        TORCH_MODEL
        + """\
from safetensors.torch import save_file
save_file(model.state_dict(), 'model.safetensors')
""",
        TORCH_MODEL
        + """\
from safetensors.torch import load_file
model.load_state_dict(load_file('model.safetensors'))
""",
    ),
    Case(
        "hf-trainer",
        ("transformers", "accelerate"),
        HF
        + """\
Trainer(model, arguments(2), train_dataset=data).train()
""",
        HF
        + """\
Trainer(model, arguments(4), train_dataset=data).train(resume_from_checkpoint=True)
""",
        ("*.safetensors", "*.pt", "*.pth", "trainer_state.json", "config.json", "training_args.bin"),
    ),
    Case(
        "hf-pretrained",
        ("transformers",),
        HF
        + """\
model.save_pretrained('weights')
""",
        HF
        + """\
model = BertForSequenceClassification.from_pretrained('weights')
""",
    ),
    Case(
        "hf-pretrained-sharded",
        ("transformers",),
        HF
        + """\
model.save_pretrained('weights', max_shard_size='30KB')
""",
        HF
        + """\
model = BertForSequenceClassification.from_pretrained('weights')
""",
        ("model.safetensors.index.json", "model-00001*", "model-00002*"),
    ),
    Case(
        "accelerate",
        ("torch", "accelerate"),
        ACCELERATE
        + TORCH_MODEL
        + """\
a = Accelerator(); model, optimizer = a.prepare(model, optimizer); a.save_state('checkpoint-2')
""",
        ACCELERATE
        + TORCH_MODEL
        + """\
a = Accelerator(); model, optimizer = a.prepare(model, optimizer)
a.load_state('checkpoint-2')
""",
    ),
    Case(
        "lightning",
        ("lightning",),
        LIGHTNING
        + """\
t = trainer(2); t.fit(Net(), data); t.save_checkpoint('epoch=0-step=2.ckpt')
""",
        LIGHTNING
        + """\
trainer(4).fit(Net(), data, ckpt_path='epoch=0-step=2.ckpt')
""",
    ),
    Case(
        "flax-msgpack",
        ("flax", "jax"),
        JAX_STATE
        + """\
from flax import serialization
open('state.msgpack','wb').write(serialization.to_bytes(state))
""",
        JAX_STATE
        + """\
from flax import serialization
state = serialization.from_bytes(state, open('state.msgpack','rb').read())
""",
    ),
    Case(
        "orbax-standard",
        ("orbax", "jax"),
        JAX_STATE
        + """\
import orbax.checkpoint as ocp, os
with ocp.StandardCheckpointer() as c: c.save(os.path.abspath('4'), state)
""",
        JAX_STATE
        + """\
import orbax.checkpoint as ocp, os
with ocp.StandardCheckpointer() as c:
    state = c.restore(os.path.abspath('4'), state)
""",
    ),
    Case(
        "orbax-manager",
        ("orbax", "jax"),
        JAX_STATE
        + """\
import orbax.checkpoint as ocp, os
with ocp.CheckpointManager(os.path.abspath('ckpts')) as m:
    m.save(4, args=ocp.args.StandardSave(state)); m.wait_until_finished()
""",
        JAX_STATE
        + """\
import orbax.checkpoint as ocp, os
with ocp.CheckpointManager(os.path.abspath('ckpts')) as m:
    state = m.restore(m.latest_step(), args=ocp.args.StandardRestore(state))
""",
    ),
    Case(
        "orbax-zarr",
        ("orbax", "jax"),
        JAX_STATE
        + """\
import orbax.checkpoint as ocp, os
c = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False))
c.save(os.path.abspath('4'), state)
""",
        JAX_STATE
        + """\
import orbax.checkpoint as ocp, os
c = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False))
state = c.restore(os.path.abspath('4'), state)
""",
    ),
    Case(
        "equinox",
        ("equinox", "jax"),
        JAX_STATE
        + """\
import equinox as eqx
eqx.tree_serialise_leaves('model.eqx', state)
""",
        JAX_STATE
        + """\
import equinox as eqx
state = eqx.tree_deserialise_leaves('model.eqx', state)
""",
    ),
    Case(
        "xgboost-ubj",
        ("xgboost",),
        """\
import numpy, xgboost
b = xgboost.train({}, xgboost.DMatrix(numpy.random.rand(99,4), numpy.random.rand(99)), 3)
b.save_model('model.ubj')
""",
        """\
import xgboost
b = xgboost.Booster()
b.load_model('model.ubj')
""",
    ),
    Case(
        "lightgbm",
        ("lightgbm",),
        """\
import numpy, lightgbm
lightgbm.train({'verbose':-1}, lightgbm.Dataset(numpy.random.rand(999,4), numpy.random.rand(999)),
    3).save_model('model.txt')
""",
        """\
import lightgbm
b = lightgbm.Booster(model_file='model.txt')
""",
    ),
    Case(
        "catboost",
        ("catboost",),
        """\
import numpy, catboost
m = catboost.CatBoostRegressor(iterations=3, verbose=0,
    allow_writing_files=False).fit(numpy.random.rand(99,4), numpy.random.rand(99))
m.save_model('model.cbm')
""",
        """\
import catboost
m = catboost.CatBoostRegressor()
m.load_model('model.cbm')
""",
    ),
    Case(
        "sklearn-joblib",
        ("sklearn", "joblib"),
        """\
import numpy, joblib
from sklearn.linear_model import SGDClassifier
joblib.dump(SGDClassifier().fit(numpy.random.rand(99,400), numpy.arange(99)%2), 'model.joblib')
""",
        """\
import joblib
model = joblib.load('model.joblib')
""",
    ),
    Case(
        "joblib-gz",
        ("joblib", "numpy"),
        """\
import numpy, joblib
joblib.dump({'w': numpy.random.rand(99,400)}, 'model.joblib.gz')
""",
        """\
import joblib
model = joblib.load('model.joblib.gz')
""",
    ),
    Case(
        "pickle",
        (),
        """\
import pickle
pickle.dump({'step': 4, 'w': [float(i) for i in range(999)]}, open('state.pkl','wb'))
""",
        """\
import pickle
with open('state.pkl','rb') as f:
    state = pickle.load(f)
""",
    ),
    Case(
        "json",
        (),
        """\
import json
json.dump({'step': 4, 'w': [float(i) for i in range(99)]}, open('state.json','w'))
""",
        """\
import json
def load_state(path):
    with open(path) as f:
        return json.load(f)
state = load_state('state.json')
""",
    ),
    Case(
        "npy",
        ("numpy",),
        """\
import numpy
numpy.save('state.npy', numpy.random.rand(99,99))
""",
        """\
import numpy
w = numpy.load('state.npy')
""",
    ),
    Case(
        "npy-mmap",
        ("numpy",),
        """\
import numpy
numpy.save('state.npy', numpy.random.rand(99,99))
""",
        """\
import numpy
w = numpy.load('state.npy', mmap_mode='r')
""",
    ),
    Case(
        "npz",
        ("numpy",),
        """\
import numpy
numpy.savez('state.npz', w=numpy.random.rand(99,99), b=numpy.ones(9))
""",
        """\
import numpy
with numpy.load('state.npz') as f:
    w, b = f['w'], f['b']
""",
    ),
    Case(
        "gzip",
        (),
        """\
import gzip, pickle, os
pickle.dump(os.urandom(9999), gzip.open('state.pkl.gz','wb'))
""",
        """\
import gzip, pickle
state = pickle.load(gzip.open('state.pkl.gz'))
""",
    ),
    Case(
        "bz2",
        (),
        """\
import bz2, pickle, os
pickle.dump(os.urandom(9999), bz2.open('state.pkl.bz2','wb'))
""",
        """\
import bz2, pickle
state = pickle.load(bz2.open('state.pkl.bz2'))
""",
    ),
    Case(
        "xz",
        (),
        """\
import lzma, pickle, os
pickle.dump(os.urandom(9999), lzma.open('state.pkl.xz','wb'))
""",
        """\
import lzma, pickle
state = pickle.load(lzma.open('state.pkl.xz'))
""",
    ),
    Case(
        "zstandard",
        ("zstandard",),
        """\
import zstandard, os
open('state.zst','wb').write(zstandard.compress(os.urandom(9999)))
""",
        """\
import zstandard
state = zstandard.decompress(open('state.zst','rb').read())
""",
    ),
    Case(
        "h5py",
        ("h5py", "numpy"),
        """\
import h5py, numpy
with h5py.File('state.h5','w') as f:
    f['w'] = numpy.random.rand(99,99)
    f.create_dataset('z', data=numpy.ones((99,99)), compression='gzip')
""",
        """\
import h5py
with h5py.File('state.h5') as f:
    w, z = f['w'][:], f['z'][:]
""",
    ),
    Case(
        "parquet",
        ("pyarrow",),
        """\
import pyarrow, pyarrow.parquet
pyarrow.parquet.write_table(pyarrow.table({'a': list(range(9999))}), 't.parquet')
""",
        """\
import pyarrow.parquet
t = pyarrow.parquet.read_table('t.parquet')
""",
    ),
    Case(
        "tf-checkpoint",
        ("tensorflow",),
        """\
import tensorflow as tf
v = tf.Variable(tf.ones((64,64))); c = tf.train.Checkpoint(v=v); c.save('ckpts/ckpt')
""",
        """\
import tensorflow as tf
v = tf.Variable(tf.ones((64,64)))
c = tf.train.Checkpoint(v=v)
m = tf.train.CheckpointManager(c, 'ckpts', 3)
c.restore(m.latest_checkpoint)
""",
    ),
    Case(
        "tf-keras",
        ("tensorflow", "keras"),
        """\
import tensorflow as tf
m = tf.keras.Sequential([tf.keras.Input((64,)), tf.keras.layers.Dense(64)])
m.compile('adam','mse')
m.save('m.keras')
""",
        """\
import tensorflow as tf
m = tf.keras.models.load_model('m.keras')
""",
    ),
    Case(
        "tf-saved-model",
        ("tensorflow",),
        """\
import tensorflow as tf
class M(tf.Module):
    def __init__(s):
        s.v = tf.Variable(tf.ones((64,64)))
tf.saved_model.save(M(), 'saved')
""",
        """\
import tensorflow as tf
m = tf.saved_model.load('saved')
""",
    ),
)

WHOLE = (
    Case(
        "torch-disallowed",
        ("torch",),
        TORCH_MODEL
        + """\
import collections, fractions
torch.save({'m': model.state_dict(), 'x': fractions.Fraction(1,2)}, 'a.pt')
""",
        """\
import torch
state = torch.load('a.pt')
""",
    ),
    Case(
        "torch-disallowed-build",
        ("torch",),
        TORCH_MODEL
        + """\
import argparse
torch.save({'args': argparse.Namespace(a=1)}, 'a.pt')
""",
        """\
import torch
state = torch.load('a.pt')
""",
    ),
    Case(
        "torch-protocol-5",
        ("torch",),
        TORCH_MODEL
        + """\
torch.save({'m': model.state_dict()}, 'a.pt', pickle_protocol=5)
""",
        """\
import torch
state = torch.load('a.pt')
""",
    ),
    Case(
        "torch-plain-pickle",
        ("torch",),
        """\
import pickle
pickle.dump({'a':1}, open('a.pt','wb'))
""",
        """\
import torch
state = torch.load('a.pt')
""",
    ),
    Case(
        "torch-class-gone",
        ("torch",),
        """\
import torch, sys, types
m = types.ModuleType('net'); sys.modules['net']=m
class Net: pass
Net.__module__='net'; Net.__qualname__='Net'; m.Net=Net
torch.save({'m': Net()}, 'a.pt')
""",
        """\
import torch, sys, types
sys.modules['net']=types.ModuleType('net')
state = torch.load('a.pt', weights_only=False)
""",
    ),
    Case(
        "torch-size",
        ("torch",),
        TORCH_MODEL
        + """\
torch.save(model.state_dict(), 'a.pt')
""",
        """\
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 64))
def load_checkpoint(path):
    model.load_state_dict(torch.load(path))
load_checkpoint('a.pt')
""",
    ),
    Case(
        "torch-keys",
        ("torch",),
        TORCH_MODEL
        + """\
torch.save(model.state_dict(), 'a.pt')
""",
        """\
import torch
model = torch.nn.Linear(64, 32)
model.load_state_dict(torch.load('a.pt'))
""",
    ),
    Case(
        "torch-optimizer",
        ("torch",),
        TORCH_MODEL
        + """\
torch.save(optimizer.state_dict(), 'a.pt')
""",
        """\
import torch
model = torch.nn.Linear(64, 32, bias=False)
optimizer = torch.optim.AdamW(model.parameters())
optimizer.load_state_dict(torch.load('a.pt'))
""",
    ),
    Case(
        "torch-user-key",
        ("torch",),
        TORCH_MODEL
        + """\
torch.save(model.state_dict(), 'a.pt')
""",
        """\
import torch
def load_checkpoint(path):
    state = torch.load(path)
    return state['optimizer']
load_checkpoint('a.pt')
""",
    ),
    Case(
        "torch-user-setstate",
        ("torch",),
        """\
import torch, sys, types
source='''
class Net:\\n    def __setstate__(self, state):\\n        self.a = state['b']\\n'''
m = types.ModuleType('net'); sys.modules['net']=m
exec(compile(source,'/app/net.py','exec'), m.__dict__); m.Net.__module__='net'
n=m.Net(); n.a=1
torch.save(n,'a.pt')
""",
        """\
import torch, sys, types
source='''
class Net:\\n    def __setstate__(self, state):\\n        self.a = state['b']\\n'''
m = types.ModuleType('net'); sys.modules['net']=m
exec(compile(source,'/app/net.py','exec'), m.__dict__); m.Net.__module__='net'
state = torch.load('a.pt', weights_only=False)
""",
    ),
    Case(
        "torch-cuda",
        ("torch",),
        TORCH_MODEL
        + """\
torch.save(model.state_dict(), 'a.pt')
""",
        """\
import torch
state = torch.load('a.pt', map_location='cuda')
""",
    ),
    Case(
        "torch-missing",
        ("torch",),
        "",
        """\
import torch
state = torch.load('gone.pt')
""",
    ),
    Case(
        "dcp-size",
        ("torch",),
        TORCH_MODEL
        + """\
import torch.distributed.checkpoint as dcp
dcp.save({'model': model.state_dict()}, checkpoint_id='s')
""",
        """\
import torch, torch.distributed.checkpoint as dcp
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 64))
dcp.load({'model': model.state_dict()}, checkpoint_id='s')
""",
    ),
    Case(
        "flax-keys",
        ("flax", "jax"),
        JAX_STATE
        + """\
from flax import serialization
open('s','wb').write(serialization.to_bytes(state))
""",
        JAX_STATE
        + """\
from flax import serialization
state['params']['c']=state['params'].pop('b')
state = serialization.from_bytes(state, open('s','rb').read())
""",
    ),
    Case(
        "orbax-keys",
        ("orbax", "jax"),
        JAX_STATE
        + """\
import orbax.checkpoint as ocp, os
with ocp.StandardCheckpointer() as c: c.save(os.path.abspath('4'), state)
""",
        JAX_STATE
        + """\
import orbax.checkpoint as ocp, os
state['params']['c']=state['params'].pop('b')
with ocp.StandardCheckpointer() as c:
    state = c.restore(os.path.abspath('4'), state)
""",
    ),
    Case(
        "orbax-shape",
        ("orbax", "jax"),
        JAX_STATE
        + """\
import orbax.checkpoint as ocp, os
with ocp.StandardCheckpointer() as c: c.save(os.path.abspath('4'), state)
""",
        JAX_STATE
        + """\
import orbax.checkpoint as ocp, os
state['params']['b']=jnp.ones(999)
with ocp.StandardCheckpointer() as c:
    state = c.restore(os.path.abspath('4'), state)
""",
    ),
    Case(
        "eqx-shape",
        ("equinox", "jax"),
        JAX_STATE
        + """\
import equinox as eqx
eqx.tree_serialise_leaves('m.eqx', state)
""",
        JAX_STATE
        + """\
import equinox as eqx
state['params']['b']=jnp.ones(999)
state = eqx.tree_deserialise_leaves('m.eqx', state)
""",
    ),
    Case(
        "hf-size",
        ("transformers", "accelerate"),
        HF
        + """\
model.save_pretrained('w')
""",
        HF
        + """\
config.hidden_size=64
model = BertForSequenceClassification.from_pretrained('w', config=config)
""",
    ),
    Case(
        "lightning-size",
        ("lightning",),
        LIGHTNING
        + """\
t = trainer(2); t.fit(Net(), data); t.save_checkpoint('a.ckpt')
""",
        LIGHTNING
        + """\
net=Net(); net.layer=torch.nn.Linear(64,32)
trainer(4).fit(net, data, ckpt_path='a.ckpt')
""",
    ),
    Case(
        "lightning-optimizer",
        ("lightning",),
        LIGHTNING
        + """\
t = trainer(2); t.fit(Net(), data); t.save_checkpoint('a.ckpt')
""",
        LIGHTNING
        + """\
class Other(Net):
    def configure_optimizers(self): return torch.optim.Adam([self.layer.weight])
trainer(4).fit(Other(), data, ckpt_path='a.ckpt')
""",
    ),
    Case(
        "hf-trainer-size",
        ("transformers", "accelerate"),
        HF
        + """\
Trainer(model, arguments(2), train_dataset=data).train()
""",
        HF
        + """\
config.hidden_size=64
model = BertForSequenceClassification(config)
Trainer(model, arguments(4), train_dataset=data).train(resume_from_checkpoint=True)
""",
    ),
    Case(
        "sample-torch",
        ("torch", "numpy"),
        TORCH_MODEL
        + """\
torch.save(torch.ones(999), 'a.pt')
d=open('a.pt','rb').read()
open('a.pt','wb').write(d[:len(d)//2])
""",
        """\
import torch
class Files(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return torch.load('a.pt')
for step, batch in enumerate(torch.utils.data.DataLoader(Files())):
    pass
""",
    ),
    Case(
        "sample-torch-worker",
        ("torch", "numpy"),
        TORCH_MODEL
        + """\
torch.save(torch.ones(999), 'a.pt')
d=open('a.pt','rb').read()
open('a.pt','wb').write(d[:-60])
""",
        """\
import torch
class Files(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return torch.load('a.pt')
for step, batch in enumerate(torch.utils.data.DataLoader(Files(), num_workers=1)):
    pass
""",
    ),
    Case(
        "sample-npy",
        ("torch", "numpy"),
        """\
import numpy
numpy.save('a.npy', numpy.ones(999))
d=open('a.npy','rb').read()
open('a.npy','wb').write(d[:len(d)//2])
""",
        """\
import torch, numpy
class Files(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return numpy.load('a.npy')
for step, batch in enumerate(torch.utils.data.DataLoader(Files())):
    pass
""",
    ),
)


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def cut_a_little(data: bytes) -> bytes:
    return data[:-100] if len(data) > 200 else data[:-1]


def emptied(_: bytes) -> bytes:
    return b""


def zeroed(data: bytes) -> bytes:
    return bytes(len(data))


def with_a_hole(data: bytes) -> bytes:
    third = len(data) // 3
    return data[:third] + bytes(len(data) - 2 * third) + data[len(data) - third :]


def flipped(data: bytes) -> bytes:
    third = len(data) // 3
    return data[:third] + bytes(byte ^ 0x5A for byte in data[third : 2 * third]) + data[2 * third :]


def as_pointer(data: bytes) -> bytes:
    return b"version https://git-lfs.github.com/spec/v1\noid sha256:%064x\nsize %d\n" % (7, len(data))


DAMAGES: dict[str, Callable[[bytes], bytes] | None] = {
    "half": cut,
    "short": cut_a_little,
    "empty": emptied,
    "zeroed": zeroed,
    "hole": with_a_hole,
    "flipped": flipped,
    "pointer": as_pointer,
    "missing": None,
}

PRELOADED = {
    "orbax": "import orbax.checkpoint",
    "transformers": "from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments",
    "lightning": "import lightning.pytorch",
    "flax": "from flax import serialization; from flax.training import checkpoints",
}


def in_a_child(work: Callable[[], int]) -> int:
    """Do something in a process that has all modules of this one; return how it ended."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run(source: str, folder: Path, output: Path) -> int:
    """Run a script in a folder as `python train.py` would; return its exit code, -n for a signal."""

    def script() -> int:
        os.chdir(folder)
        stream = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        signal.alarm(LOAD_S)
        try:
            exec(compile(source, "/app/train.py", "exec"), {"__name__": "__main__"})
        except SystemExit as exit_:
            return int(exit_.code or 0)
        except BaseException as error:
            own = error.__traceback__
            sys.excepthook(type(error), error.with_traceback(own and own.tb_next), None)
            return 1
        return 0

    return in_a_child(script)


# -- what is recorded -------------------------------------------------------------------------------

_LIBRARY = re.compile(r"/[^\s\"']*?/site-packages/")
_STANDARD = re.compile(r"/[^\s\"']*?/lib/python3\.\d+/(?!site-packages)")
_STACK = re.compile(r"\s*\[bt\]|Stack trace:")
_LINES, _COLUMNS, _FRAMES = 60, 300, 7
_VARYING = re.compile(r"\d+|'[^']*'|\"[^\"]*\"|\\x..")


def shortened(output: str) -> list[str]:
    """Return the frames and messages of an output from its first traceback on, else its last lines."""
    lines = output.splitlines()
    begins = (at for at, line in enumerate(lines) if "Traceback (most recent call last)" in line)
    kept: list[str] = []
    frames: list[str] = []
    is_code = False
    for line in [*lines[next(begins, max(0, len(lines) - 12)) :], "end"]:
        if is_code and line.startswith("    "):
            continue
        is_code = line.lstrip().startswith('File "')
        if is_code:
            frames.append(anywhere(line))
        elif line.strip() and not _STACK.match(line):
            kept += frames if len(frames) <= 2 * _FRAMES else [*frames[:_FRAMES], *frames[-_FRAMES:]]
            frames.clear()
            kept.append(anywhere(line))
    return kept[:-1][:_LINES]


def anywhere(line: str) -> str:
    """Return a line as it would be on any machine."""
    library = "/opt/venv/lib/python3.11/site-packages/"
    return _STANDARD.sub("/usr/lib/python3.11/", _LIBRARY.sub(library, line))[:_COLUMNS]


def kind_of(row: dict[str, Any]) -> tuple[str, ...]:
    """Return what two rows of the same kind have in common: the library, and how the output ends."""
    library = row["library"] if row["damage"] == "none" else row["library"].partition("-")[0]
    ends = [line for line in row["log"] if re.match(r"[\w.]+: |EOFError", line)] or row["log"][-1:]
    return library, str(row["damage"] == "missing"), _VARYING.sub("#", ends[-1])[:70] if ends else ""


def outputs_of(case: Case, top: Path, damages: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Save once, then load what each damage leaves of each file; only what fails is told of."""
    good, work, output = top / "good", top / "work", top / "output"
    good.mkdir()
    if run(case.save, good, output):
        print(f"{case.name}: cannot be saved: {output.read_text()[-500:]}")
        return
    found = {
        file.relative_to(good) for pattern in case.files for file in good.rglob(pattern) if file.is_file()
    }
    for file in sorted(found)[:FILES] if damages else (None,):
        for name, damage in (damages or {"none": None}).items():
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(good, work)
            if file is not None and damage is None:
                (work / file).unlink()
            elif file is not None:
                (work / file).write_bytes(damage((work / file).read_bytes()))
            code = run(case.load, work, output)
            if code:
                text = output.read_text(errors="replace").replace(str(work), "/run").replace(str(top), "/run")
                where = re.sub(r"[0-9a-f]{32}", "#", str(file or ""))
                row = {"library": case.name, "file": where, "damage": name, "exit_code": code}
                yield {**row, "log": shortened(text)}


def record(case: Case, damages: dict[str, Any], stream: int) -> int:
    """Write a case's rows, each kind once."""
    for name in case.needs:
        exec(PRELOADED.get(name, f"import {name}"), {})
    with tempfile.TemporaryDirectory(prefix="damage-") as top:
        rows = {kind_of(row): row for row in outputs_of(case, Path(top), damages)}
    print(f"{case.name}: {len(rows)}", flush=True)
    os.write(stream, "".join(f"{json.dumps(row)}\n" for row in rows.values()).encode())
    return 0


def main() -> None:
    """Record the cases whose libraries are here, and keep what is recorded of the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression: the names of cases")
    only = re.compile(parser.parse_args().only)
    cases = [
        (case, damages)
        for table, damages in ((CASES, DAMAGES), (WHOLE, {}))
        for case in table
        if only.search(case.name) and all(map(importlib.util.find_spec, case.needs))
    ]
    rows = [json.loads(line) for line in zstandard.decompress(RECORDED.read_bytes()).splitlines()]
    renewed = {case.name for case, _ in cases}
    known = {kind_of(row): row for row in rows if row["library"] not in renewed}
    with tempfile.TemporaryFile() as stream:
        for case, damages in cases:
            in_a_child(lambda case=case, damages=damages: record(case, damages, stream.fileno()))
        stream.seek(0)
        for row in map(json.loads, stream):
            known.setdefault(kind_of(row), row)
    text = "".join(f"{json.dumps(row)}\n" for row in known.values())
    RECORDED.write_bytes(zstandard.compress(text.encode(), 19))


if __name__ == "__main__":
    main()
