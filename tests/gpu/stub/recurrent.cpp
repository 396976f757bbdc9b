// cuDNN's recurrent layers: torch asks where in one space of weights each matrix and each bias
// lies, and copies its parameters there. Here the matrices of all layers come first, then biases.
#include "stub.h"

#include <cudnn.h>

#include <map>

using namespace stub;

namespace {
struct Layers {
  int gates;
  bool biased;
  int input, hidden, projected, count, directions;
  cudnnDataType_t type;

  int each() const { return 2 * gates; }  // matrices for the input, then for the hidden state
  bool projects() const { return projected && projected != hidden; }
  int fed() const { return projects() ? projected : hidden; }
  size_t item() const {
    return type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2;
  }
  int rows(int matrix) const { return matrix == each() ? projected : hidden; }
  int columns(int layer, int matrix) const {
    if (matrix == each()) return hidden;
    if (matrix >= gates) return fed();
    return layer < directions ? input : fed() * directions;
  }
  // The bytes before a matrix; before one that there is not, those of all matrices.
  size_t matrix_at(int layer, int matrix) const {
    size_t bytes = 0;
    for (int l = 0; l < count * directions; l++)
      for (int m = 0; m < each() + projects(); m++) {
        if (l == layer && m == matrix) return bytes;
        bytes += size_t(rows(m)) * columns(l, m) * item();
      }
    return bytes;
  }
  size_t bias_at(int layer, int matrix) const {
    return matrix_at(-1, -1) + (size_t(layer) * each() + matrix) * hidden * item();
  }
  size_t bytes() const { return biased ? bias_at(count * directions, 0) : matrix_at(-1, -1); }
};

struct Shape {
  int rows, columns;
  cudnnDataType_t type;
};

std::map<const void*, Layers>& layers_of() {
  static auto* all = new std::map<const void*, Layers>;
  return *all;
}

std::map<const void*, Shape>& shapes() {
  static auto* all = new std::map<const void*, Shape>;
  return *all;
}
}  // namespace

extern "C" {

cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t descriptor, cudnnRNNAlgo_t,
                                       cudnnRNNMode_t cell, cudnnRNNBiasMode_t bias,
                                       cudnnDirectionMode_t direction, cudnnRNNInputMode_t,
                                       cudnnDataType_t type, cudnnDataType_t, cudnnMathType_t,
                                       int32_t input, int32_t hidden, int32_t projected,
                                       int32_t count, cudnnDropoutDescriptor_t, uint32_t) {
  LOCK;
  Layers layers{};
  layers.gates = cell == CUDNN_LSTM ? 4 : cell == CUDNN_GRU ? 3 : 1;
  layers.biased = bias != CUDNN_RNN_NO_BIAS;
  layers.input = input;
  layers.hidden = hidden;
  layers.projected = projected;
  layers.count = count;
  layers.directions = direction == CUDNN_BIDIRECTIONAL ? 2 : 1;
  layers.type = type;
  layers_of()[descriptor] = layers;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t, cudnnRNNDescriptor_t descriptor,
                                         size_t* size) {
  LOCK;
  *size = layers_of()[descriptor].bytes();
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t, cudnnRNNDescriptor_t descriptor,
                                      int32_t layer, size_t, const void* space, int32_t number,
                                      cudnnTensorDescriptor_t matrix, void** matrix_address,
                                      cudnnTensorDescriptor_t bias, void** bias_address) {
  LOCK;
  auto& layers = layers_of()[descriptor];
  bool has_matrix = number < layers.each() + layers.projects();
  bool has_bias = layers.biased && number < layers.each();
  auto at = [=](size_t offset) { return (void*)((char*)space + offset); };
  if (matrix_address) *matrix_address = has_matrix ? at(layers.matrix_at(layer, number)) : nullptr;
  if (bias_address) *bias_address = has_bias ? at(layers.bias_at(layer, number)) : nullptr;
  int columns = has_matrix ? layers.columns(layer, number) : 0;
  shapes()[matrix] = {layers.rows(number), columns, layers.type};
  shapes()[bias] = {layers.hidden, 1, layers.type};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetTensorNdDescriptor(cudnnTensorDescriptor_t descriptor, int,
                                         cudnnDataType_t* type, int* count, int* sizes,
                                         int* strides) {
  LOCK;
  auto shape = shapes()[descriptor];
  *type = shape.type;
  *count = 3;
  sizes[0] = 1;
  sizes[1] = shape.rows;
  sizes[2] = shape.columns;
  strides[0] = shape.rows * shape.columns;
  strides[1] = shape.columns;
  strides[2] = 1;
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
