// Calls a signature of a SavedModel from C: the loader and the session of TensorFlow Serving, and no Python.
//
//   run_saved_model MODEL SIGNATURE INPUTS OUTPUTS [INPUTS OUTPUTS ...]
//
// Loads the directory MODEL once and calls SIGNATURE once for each pair of folders, all in one session, so that the variables which one
// call assigns are those that the next one reads. A call reads INPUTS/<name>.npy for each input of the signature and writes
// OUTPUTS/<name>.npy for each output, in NumPy's format, version 1.0. A failure is one line on stderr and exit code 1; under
// TF_CPP_MIN_LOG_LEVEL=3 it is the only one, because all that TensorFlow would log of it comes as a TF_Status as well.

#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tensorflow/c/c_api.h"

// ---- What is on stderr

static int stderr_of_caller;

// TF 2.21 writes two notes on stderr when its libraries are loaded, whatever the log level; before that is the time of .preinit_array.
static void hide_stderr(void) {
  int nowhere = open("/dev/null", O_WRONLY);
  stderr_of_caller = dup(STDERR_FILENO);
  dup2(nowhere, STDERR_FILENO);
  close(nowhere);
}
__attribute__((section(".preinit_array"), used)) static void (*const before_libraries)(void) = hide_stderr;

static void show_stderr(void) {
  dup2(stderr_of_caller, STDERR_FILENO);
  close(stderr_of_caller);
}

static _Noreturn void fail(const char *format, ...) {
  char line[4096];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  for (char *c = line; *c; c++) {
    if (*c == '\n') *c = ' ';  // TensorFlow's messages may have several lines
  }
  fprintf(stderr, "run_saved_model: %s\n", line);
  exit(1);
}

static void check(const TF_Status *status, const char *doing, const char *what) {
  if (TF_GetCode(status) != TF_OK) fail("cannot %s %s: %s", doing, what, TF_Message(status));
}

static void *allocate(void *old, size_t size) {
  void *memory = realloc(old, size ? size : 1);
  if (!memory) fail("no memory for %zu bytes", size);
  return memory;
}

// ---- Protocol buffers, as much as a MetaGraphDef needs: https://protobuf.dev/programming-guides/encoding

typedef struct {
  const uint8_t *at, *end;
} Bytes;

// The numbers of the fields, from tensorflow/core/protobuf/meta_graph.proto. An entry of a map is a message of a key and a value.
enum { META_GRAPH_SIGNATURES = 5, SIGNATURE_INPUTS = 1, SIGNATURE_OUTPUTS = 2, TENSOR_NAME = 1, MAP_KEY = 1, MAP_VALUE = 2 };

static uint64_t read_varint(Bytes *message) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && message->at < message->end; shift += 7) {
    uint8_t byte = *message->at++;
    value |= (uint64_t)(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  fail("the MetaGraphDef is damaged: a number without an end");
}

// Moves on past the next field of this number that holds a string or a message; false if the message has no more of them.
static bool next_field(Bytes *message, uint64_t number, Bytes *field) {
  while (message->at < message->end) {
    uint64_t key = read_varint(message), value = read_varint(message);
    if ((key & 7) == 0) continue;
    if ((key & 7) != 2 || value > (uint64_t)(message->end - message->at)) fail("the MetaGraphDef is damaged: field %d", (int)(key >> 3));
    *field = (Bytes){message->at, message->at + value};
    message->at = field->end;
    if (key >> 3 == number) return true;
  }
  return false;
}

static Bytes only_field(Bytes message, uint64_t number) {
  Bytes field = {NULL, NULL};  // what an absent field means: empty
  next_field(&message, number, &field);
  return field;
}

static char *string_of(Bytes field) {
  size_t size = (size_t)(field.end - field.at);
  char *string = allocate(NULL, size + 1);
  if (size) memcpy(string, field.at, size);
  string[size] = '\0';
  return string;
}

// ---- Signatures

static Bytes find_signature(const TF_Buffer *meta_graph, const char *wanted) {
  const uint8_t *data = meta_graph->data;
  Bytes rest = {data, data + meta_graph->length}, entry;
  char known[1024] = "";
  while (next_field(&rest, META_GRAPH_SIGNATURES, &entry)) {
    char *name = string_of(only_field(entry, MAP_KEY));
    bool found = strcmp(name, wanted) == 0;
    if (strncmp(name, "__", 2) != 0) {  // those are the loader's own, such as __saved_model_init_op
      size_t used = strlen(known);
      snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", name);
    }
    free(name);
    if (found) return only_field(entry, MAP_VALUE);
  }
  fail("the model has no signature '%s'; name one of its own: %s", wanted, known);
}

// The inputs of a signature, or its outputs: their names and their places in the graph.
typedef struct {
  int count;
  char **names;
  TF_Output *places;
} Ports;

// A place from its name in the graph, "serving_default_x:0".
static TF_Output find_place(TF_Graph *graph, char *name) {
  char *colon = strrchr(name, ':');
  if (!colon) fail("the tensor '%s' of the signature is not written as operation:index", name);
  *colon = '\0';
  TF_Output place = {TF_GraphOperationByName(graph, name), atoi(colon + 1)};
  if (!place.oper) fail("the graph has no operation '%s', which the signature names", name);
  return place;
}

static Ports find_ports(TF_Graph *graph, Bytes signature, uint64_t inputs_or_outputs) {
  Ports ports = {0, NULL, NULL};
  for (Bytes entry; next_field(&signature, inputs_or_outputs, &entry); ports.count++) {
    ports.names = allocate(ports.names, (size_t)(ports.count + 1) * sizeof *ports.names);
    ports.places = allocate(ports.places, (size_t)(ports.count + 1) * sizeof *ports.places);
    char *tensor = string_of(only_field(only_field(entry, MAP_VALUE), TENSOR_NAME));
    ports.names[ports.count] = string_of(only_field(entry, MAP_KEY));
    ports.places[ports.count] = find_place(graph, tensor);
    free(tensor);
  }
  return ports;
}

static void free_ports(Ports ports) {
  for (int i = 0; i < ports.count; i++) free(ports.names[i]);
  free(ports.names);
  free(ports.places);
}

// ---- Tensors in NumPy's format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

enum { MAX_RANK = 64, MAX_HEADER = 4096, PREFIX = 10 };
static const char MAGIC[] = "\x93NUMPY\x01";  // and, with its last NUL, version 1.0

static const struct {
  const char *description;
  TF_DataType type;
} DTYPES[] = {
  {"|b1", TF_BOOL},   {"|i1", TF_INT8},   {"<i2", TF_INT16}, {"<i4", TF_INT32}, {"<i8", TF_INT64},
  {"|u1", TF_UINT8},  {"<u2", TF_UINT16}, {"<u4", TF_UINT32}, {"<u8", TF_UINT64},
  {"<f2", TF_HALF},   {"<f4", TF_FLOAT},  {"<f8", TF_DOUBLE}, {"<c8", TF_COMPLEX64}, {"<c16", TF_COMPLEX128},
};
enum { DTYPE_COUNT = sizeof DTYPES / sizeof *DTYPES };

// NULL for a dtype that is not in the table.
static const char *description_of(TF_DataType type) {
  for (int row = 0; row < DTYPE_COUNT; row++) {
    if (DTYPES[row].type == type) return DTYPES[row].description;
  }
  return NULL;
}

typedef struct {
  TF_DataType type;
  int rank;
  int64_t sizes[MAX_RANK];
  size_t bytes;
} Header;

static FILE *open_tensor(const char *folder, const char *name, const char *mode, char path[static FILENAME_MAX]) {
  if (snprintf(path, FILENAME_MAX, "%s/%s.npy", folder, name) >= FILENAME_MAX) fail("the path %s/%s.npy is too long", folder, name);
  FILE *file = fopen(path, mode);
  if (!file) fail("cannot open %s: %s; a call needs both of its folders, and a file for each input", path, strerror(errno));
  return file;
}

// From the header's Python dictionary, {'descr': '<f4', 'fortran_order': False, 'shape': (2, 784), }.
static Header parse_header(const char *text, const char *path) {
  const char *dtype = strstr(text, "'descr': "), *shape = strstr(text, "'shape': (");
  char description[8];
  if (!dtype || !shape || sscanf(dtype, "'descr': '%7[^']'", description) != 1 || !strstr(text, "'fortran_order': False")) {
    fail("%s has the header %s; write it as an array of numbers in C order", path, text);
  }
  int row = 0;
  while (row < DTYPE_COUNT && strcmp(DTYPES[row].description, description) != 0) row++;
  if (row == DTYPE_COUNT) fail("%s has the dtype %s, which is none of TensorFlow's numbers; write it as another", path, description);

  Header header = {.type = DTYPES[row].type, .bytes = TF_DataTypeSize(DTYPES[row].type)};
  for (const char *at = shape + strlen("'shape': ("); *at && *at != ')'; at += strspn(at, ", ")) {
    char *end;
    long long size = strtoll(at, &end, 10);
    if (end == at || size < 0 || header.rank == MAX_RANK || __builtin_mul_overflow(header.bytes, (size_t)size, &header.bytes)) {
      fail("%s has the header %s, with a shape that no tensor can have", path, text);
    }
    header.sizes[header.rank++] = size;
    at = end;
  }
  return header;
}

static TF_Tensor *read_tensor(const char *folder, const char *name) {
  char path[FILENAME_MAX], text[MAX_HEADER + 1];
  uint8_t prefix[PREFIX];
  FILE *file = open_tensor(folder, name, "rb", path);
  if (fread(prefix, 1, PREFIX, file) != PREFIX || memcmp(prefix, MAGIC, sizeof MAGIC) != 0) {
    fail("%s is no .npy file of version 1.0; write it with numpy.save", path);
  }
  size_t length = prefix[8] + 256u * prefix[9];
  if (length > MAX_HEADER || fread(text, 1, length, file) != length) fail("%s has no whole header; write it anew", path);
  text[length] = '\0';
  Header header = parse_header(text, path);

  TF_Tensor *tensor = TF_AllocateTensor(header.type, header.sizes, header.rank, header.bytes);
  if (!tensor) fail("no memory for the %zu bytes of %s", header.bytes, path);
  size_t found = fread(TF_TensorData(tensor), 1, header.bytes, file);
  if (found != header.bytes) fail("%s ends after %zu of its %zu bytes of data; write it anew", path, found, header.bytes);
  if (fgetc(file) != EOF) fail("%s goes on after its %zu bytes of data; write it anew", path, header.bytes);
  fclose(file);
  return tensor;
}

static void write_tensor(const char *folder, const char *name, const TF_Tensor *tensor) {
  int rank = TF_NumDims(tensor);
  const char *description = description_of(TF_TensorType(tensor));
  if (!description || rank > MAX_RANK) {
    fail("output '%s' has TensorFlow's dtype number %d and rank %d, which NumPy has not", name, (int)TF_TensorType(tensor), rank);
  }
  // Wide enough for MAX_RANK sizes of 20 digits.
  char path[FILENAME_MAX], text[MAX_HEADER];
  int used = snprintf(text, MAX_HEADER, "{'descr': '%s', 'fortran_order': False, 'shape': (", description);
  for (int i = 0; i < rank; i++) used += snprintf(text + used, MAX_HEADER - used, "%lld, ", (long long)TF_Dim(tensor, i));
  used += snprintf(text + used, MAX_HEADER - used, "), }");
  // Spaces and a newline, so that the data begin at a multiple of 64 bytes.
  int length = (PREFIX + used + 1 + 63) / 64 * 64 - PREFIX;
  snprintf(text + used, MAX_HEADER - used, "%*s", length - used, "\n");

  FILE *file = open_tensor(folder, name, "wb", path);
  uint8_t prefix[PREFIX] = {[8] = (uint8_t)(length & 255), [9] = (uint8_t)(length >> 8)};
  memcpy(prefix, MAGIC, sizeof MAGIC);
  const struct {
    const void *data;
    size_t size;
  } parts[] = {{prefix, PREFIX}, {text, length}, {TF_TensorData(tensor), TF_TensorByteSize(tensor)}};
  for (int i = 0; i < 3; i++) {
    if (fwrite(parts[i].data, 1, parts[i].size, file) != parts[i].size) fail("cannot write %s: %s", path, strerror(errno));
  }
  if (fclose(file) != 0) fail("cannot write %s: %s", path, strerror(errno));
}

// ---- The session

static TF_Tensor *read_input(const char *folder, const char *name, TF_Output place) {
  TF_Tensor *tensor = read_tensor(folder, name);
  const char *found = description_of(TF_TensorType(tensor)), *wanted = description_of(TF_OperationOutputType(place));
  if (!wanted) fail("input '%s' is of a dtype that NumPy has not", name);
  if (strcmp(found, wanted) != 0) fail("%s/%s.npy has the dtype %s and the signature takes %s", folder, name, found, wanted);
  return tensor;
}

static void call(TF_Session *session, Ports inputs, Ports outputs, const char *from, const char *to) {
  TF_Tensor **fed = allocate(NULL, (size_t)inputs.count * sizeof *fed);
  TF_Tensor **fetched = allocate(NULL, (size_t)outputs.count * sizeof *fetched);
  for (int i = 0; i < inputs.count; i++) fed[i] = read_input(from, inputs.names[i], inputs.places[i]);

  TF_Status *status = TF_NewStatus();
  TF_SessionRun(session, NULL, inputs.places, fed, inputs.count, outputs.places, fetched, outputs.count, NULL, 0, NULL, status);
  check(status, "run the signature on", from);
  for (int i = 0; i < outputs.count; i++) write_tensor(to, outputs.names[i], fetched[i]);

  TF_DeleteStatus(status);
  for (int i = 0; i < inputs.count; i++) TF_DeleteTensor(fed[i]);
  for (int i = 0; i < outputs.count; i++) TF_DeleteTensor(fetched[i]);
  free(fed);
  free(fetched);
}

int main(int argc, char **argv) {
  show_stderr();
  if (argc < 5 || argc % 2 == 0) fail("%d arguments; write run_saved_model MODEL SIGNATURE INPUTS OUTPUTS [INPUTS OUTPUTS ...]", argc - 1);
  const char *model = argv[1], *tags[] = {"serve"};

  TF_Status *status = TF_NewStatus();
  TF_Graph *graph = TF_NewGraph();
  TF_SessionOptions *options = TF_NewSessionOptions();
  TF_Buffer *meta_graph = TF_NewBuffer();
  TF_Session *session = TF_LoadSessionFromSavedModel(options, NULL, model, tags, 1, graph, meta_graph, status);
  check(status, "load", model);

  Bytes signature = find_signature(meta_graph, argv[2]);
  Ports inputs = find_ports(graph, signature, SIGNATURE_INPUTS), outputs = find_ports(graph, signature, SIGNATURE_OUTPUTS);
  for (int i = 3; i < argc; i += 2) call(session, inputs, outputs, argv[i], argv[i + 1]);

  free_ports(inputs);
  free_ports(outputs);
  TF_CloseSession(session, status);
  check(status, "close", model);
  TF_DeleteSession(session, status);
  check(status, "delete the session of", model);
  TF_DeleteBuffer(meta_graph);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  return 0;
}
