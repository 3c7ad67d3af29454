"""A signature of serialized Examples under TFX-BSL and tf.Transform, in an environment of theirs:
`make tfx`.

python tests/pipelines/tfx_examples.py save FOLDER    here, with JAX

python tests/pipelines/tfx_examples.py run FOLDER     there, without JAX and jax2tf
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

X = np.arange(-4, 4, dtype=np.float32).reshape(2, 4)


def save(folder: Path) -> None:
  """The model, and what JAX says."""
  import jax.numpy as jnp  # noqa: PLC0415

  from jax2tf.converters import saved_model  # noqa: PLC0415

  params = {"w": np.arange(12, dtype=np.float32).reshape(4, 3)}
  model = saved_model.Model(params).add(
    lambda p, x: jnp.tanh(x @ p["w"]),
    inputs={"x": "f32[b,4]"},
    outputs=["y"],
    method="predict",
    signatures="tensors",
  )
  model.add(
    lambda p, x: jnp.tanh(x @ p["w"]), inputs={"x": "f32[b,4]"}, outputs=["y"], examples=True
  )
  model.save(folder / "model", version=1)
  np.save(folder / "y.npy", np.tanh(X @ params["w"]))


def run(folder: Path) -> None:
  """RunInference of TFX-BSL on Beam, and tf.Transform with the model inside of its
  preprocessing."""
  import apache_beam as beam  # noqa: PLC0415
  import tensorflow_transform as tft  # noqa: PLC0415
  import tensorflow_transform.beam as tft_beam  # noqa: PLC0415
  from tensorflow_transform.tf_metadata import dataset_metadata, schema_utils  # noqa: PLC0415
  from tfx_bsl.public.beam import RunInference  # noqa: PLC0415
  from tfx_bsl.public.proto import model_spec_pb2  # noqa: PLC0415

  expected, path = np.load(folder / "y.npy"), str(folder / "model" / "1")
  feature = lambda x: tf.train.Feature(float_list=tf.train.FloatList(value=x))  # noqa: E731
  examples = [tf.train.Example(features=tf.train.Features(feature={"x": feature(x)})) for x in X]
  found: list[Any] = []
  spec = model_spec_pb2.InferenceSpecType(
    saved_model_spec=model_spec_pb2.SavedModelSpec(model_path=path)
  )
  with beam.Pipeline() as pipeline:
    logs = pipeline | beam.Create(examples) | RunInference(spec)
    _ = (
      logs
      | beam.Map(lambda log: log.SerializeToString())
      | beam.io.WriteToTFRecord(str(folder / "logs"))
    )
  from tensorflow_serving.apis import prediction_log_pb2  # noqa: PLC0415

  for record in tf.data.TFRecordDataset(tf.io.gfile.glob(str(folder / "logs*"))):
    log = prediction_log_pb2.PredictionLog.FromString(record.numpy()).predict_log
    example = tf.train.Example.FromString(log.request.inputs["examples"].string_val[0])
    found.append(
      (
        example.features.feature["x"].float_list.value[:],
        tf.make_ndarray(log.response.outputs["y"]),
      )
    )
  found.sort(key=lambda pair: pair[0])
  np.testing.assert_allclose(np.squeeze([y for _, y in found]), expected, rtol=1e-6)

  def preprocessing(inputs: dict[str, Any]) -> dict[str, Any]:
    model = tft.make_and_track_object(lambda: tf.saved_model.load(path), name="model")
    return {"y": model.predict(inputs["x"])}

  metadata = dataset_metadata.DatasetMetadata(
    schema_utils.schema_from_feature_spec({"x": tf.io.FixedLenFeature([4], tf.float32)})
  )
  with tft_beam.Context(temp_dir=str(folder / "tft")):
    (data, _), _ = ([{"x": x} for x in X], metadata) | tft_beam.AnalyzeAndTransformDataset(
      preprocessing
    )
  np.testing.assert_allclose([row["y"] for row in data], expected, rtol=1e-6)
  print("equal")


if __name__ == "__main__":
  {"save": save, "run": run}[sys.argv[1]](Path(sys.argv[2]))
