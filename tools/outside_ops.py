"""The table of ops that reach outside of a model: files, the network, Python, the process itself,
or a program that the graph hides.

Names of TensorFlow 2.21. The other ops compute values, keep state in the memory of the process, or
run functions of the model's library, whose ops are looked up here as well. An op of a library that
is not loaded cannot run.
"""

from __future__ import annotations

READS, WRITES, NETWORK, PYTHON = (
  "reads files",
  "writes files",
  "uses the network",
  "calls Python or code of the host",
)
HIDDEN, PROCESS = "runs a program that the graph does not show", "ends or changes the process"

_READS = """
  ReadFile MatchingFiles ImmutableConst RecordInput Skipgram FixedUnigramCandidateSampler
  InitializeTableFromTextFile InitializeTableFromTextFileV2 GenerateVocabRemapping
  LoadAndRemapMatrix Restore RestoreSlice RestoreV2 DTensorRestoreV2 FixedLengthRecordReader
  FixedLengthRecordReaderV2 LMDBReader TFRecordReader TFRecordReaderV2 TextLineReader
  TextLineReaderV2 WholeFileReader WholeFileReaderV2 CSVDataset CSVDatasetV2 ExperimentalCSVDataset
  FixedLengthRecordDataset FixedLengthRecordDatasetV2 LMDBDataset ExperimentalLMDBDataset
  MatchingFilesDataset ExperimentalMatchingFilesDataset TFRecordDataset TFRecordDatasetV2
  TextLineDataset LoadDataset ListSnapshotChunksDataset SnapshotChunkDataset SnapshotDatasetReader
  SnapshotNestedDatasetReader
"""

_WRITES = """
  WriteFile Save SaveSlices SaveV2 MergeV2Checkpoints CreateSummaryFileWriter CreateSummaryDbWriter
  CalibrationStatisticsSaver DumpTensor PrintV2 CacheDataset CacheDatasetV2 SaveDataset
  SaveDatasetV2 SnapshotDataset SnapshotDatasetV2 DistributedSave DatasetToTFRecord
  ExperimentalDatasetToTFRecord DebugIdentity DebugIdentityV2 DebugIdentityV3 DebugNanCount
  DebugNumericSummary
"""

# Of databases, of the tf.data service, and of calls between processes.
_NETWORK = """
  SqlDataset ExperimentalSqlDataset DataServiceDataset DataServiceDatasetV2 DataServiceDatasetV3
  DataServiceDatasetV4 RegisterDataset RegisterDatasetV2 RpcClient RpcCall RpcServer RpcServerStart
  RpcServerRegister
"""

_PYTHON = """
  PyFunc PyFuncStateless EagerPyFunc XlaCallModule XlaCustomCall XlaCustomCallV2
  XlaHostCompute _XlaHostComputeMlir XlaSendToHost XlaRecvFromHost
"""

# A graph or a module as a string, which is parsed when the op runs.
_HIDDEN = "DatasetFromGraph DeserializeIterator MlirPassthroughOp _TPUCompileMlir"

_PROCESS = "Abort FileSystemSetConfiguration"

OPS: dict[str, str] = {
  name: effect
  for effect, names in (
    (READS, _READS),
    (WRITES, _WRITES),
    (NETWORK, _NETWORK),
    (PYTHON, _PYTHON),
    (HIDDEN, _HIDDEN),
    (PROCESS, _PROCESS),
  )
  for name in names.split()
}

# The input that names the file, of ops that read an asset of the model: a vocabulary, for example.
ASSET_INPUTS = {"ReadFile": 0, "InitializeTableFromTextFile": 1, "InitializeTableFromTextFileV2": 1}

# What the graph needs to write and to read its own checkpoint. The loader names the file.
SAVER_OPS, RESTORER_OPS = frozenset(["SaveV2", "MergeV2Checkpoints"]), frozenset(["RestoreV2"])
