// Trains a model without Python: a step that tg.export(graph, path, "aoti") wrote, and libtorch.
//
//     train_step STEP.pt2 BATCHES STEPS STATES_OUT [NAME=VALUE@STEP ...]
//
// BATCHES holds, step after step, the arguments of the step as they lie in memory. The loss of each
// step is printed, and the states are written to STATES_OUT/<name>.bin at the end. A state without
// dimensions, such as a learning rate, is set to VALUE before a step by NAME=VALUE@STEP.

#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct State {
  std::string name;
  std::string role;
  at::Tensor value;
};

at::ScalarType dtype_of(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "float64") return at::kDouble;
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float16") return at::kHalf;
  if (name == "int64") return at::kLong;
  if (name == "int32") return at::kInt;
  if (name == "bool") return at::kBool;
  throw std::runtime_error("no dtype is called " + name);
}

std::vector<int64_t> numbers(const std::string& text) {
  std::vector<int64_t> found;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) found.push_back(std::stoll(part));
  return found;
}

// The states in the order in which the step takes them, with the values they had at the export.
std::vector<State> states_of(const std::string& package) {
  caffe2::serialize::PyTorchStreamReader reader(package);
  auto read = [&](const std::string& name) {
    auto [data, size] = reader.getRecord(name);
    return std::string(static_cast<const char*>(data.get()), size);
  };
  std::vector<State> found;
  std::istringstream table(read("torchgraph/states.tsv"));
  for (std::string line; std::getline(table, line);) {
    std::vector<std::string> columns;
    std::istringstream parts(line);
    for (std::string part; std::getline(parts, part, '\t');) columns.push_back(part);
    const auto shape = numbers(columns[3]), strides = numbers(columns[4]);
    std::string bytes = read(columns[5]);
    auto rows = at::from_blob(bytes.data(), shape, dtype_of(columns[2]));
    auto value = at::empty_strided(shape, strides, dtype_of(columns[2]));
    value.copy_(rows);
    found.push_back({columns[0], columns[1], value});
  }
  return found;
}

void write(const std::filesystem::path& folder, const State& state) {
  std::filesystem::create_directories(folder);
  auto rows = state.value.contiguous();
  std::ofstream file(folder / (state.name + ".bin"), std::ios::binary);
  file.write(static_cast<const char*>(rows.data_ptr()), static_cast<std::streamsize>(rows.nbytes()));
}

struct Setting {
  std::string name;
  double value;
  int64_t step;
};

Setting setting(const std::string& text) {
  const auto equals = text.find('='), at = text.rfind('@');
  return {text.substr(0, equals), std::stod(text.substr(equals + 1, at - equals - 1)),
          std::stoll(text.substr(at + 1))};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::cerr << "train_step STEP.pt2 BATCHES STEPS STATES_OUT [NAME=VALUE@STEP ...]\n";
    return 2;
  }
  const std::string package = argv[1];
  std::ifstream batches(argv[2], std::ios::binary);
  const int64_t steps = std::stoll(argv[3]);
  std::vector<Setting> settings;
  for (int i = 5; i < argc; ++i) settings.push_back(setting(argv[i]));

  auto states = states_of(package);
  torch::inductor::AOTIModelPackageLoader step(package);
  std::cout << std::setprecision(9);
  for (int64_t number = 0; number < steps; ++number) {
    for (const auto& one : settings) {
      for (auto& state : states) {
        if (one.step == number && one.name == state.name) state.value.fill_(one.value);
      }
    }
    std::vector<at::Tensor> inputs;
    for (const auto& state : states) inputs.push_back(state.value);  // written by the step
    auto x = at::empty({16, 8}), y = at::empty({16, 1});
    for (auto& tensor : {x, y}) {
      const auto size = static_cast<std::streamsize>(tensor.nbytes());
      batches.read(static_cast<char*>(tensor.data_ptr()), size);
      inputs.push_back(tensor);
    }
    std::cout << step.run(inputs).at(0).item<float>() << "\n";
  }
  for (const auto& state : states) write(argv[4], state);
}
