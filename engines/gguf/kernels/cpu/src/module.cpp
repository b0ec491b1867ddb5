// The Python module. It shares MLX's own nanobind domain, so arrays pass as they are.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <system_error>

#include "layer.h"
#include "mapping.h"
#include "mlx/version.h"
#include "operations.h"
#include "pool.h"
#include "table.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

std::vector<std::string> variants() {
  int count = 0;
  const innkeeper::Kernels* const* usable = innkeeper::usable_variants(&count);
  std::vector<std::string> names;
  for (int i = 0; i < count; i++) names.emplace_back(usable[i]->name);
  return names;
}

}  // namespace

NB_MODULE(_innkeeper_cpu, m) {
  m.attr("mlx_version") = std::to_string(MLX_VERSION_MAJOR) + "." + std::to_string(MLX_VERSION_MINOR) + "." +
                          std::to_string(MLX_VERSION_PATCH);
  m.def("variants", &variants);
  m.def("variant", [] { return std::string(innkeeper::kernels().name); });
  m.def("choose_variant", [](const std::string& name) { return innkeeper::choose_variant(name.c_str()); });
  m.def("set_threads", [](int count) { innkeeper::ThreadPool::shared().resize(count); },
        nb::call_guard<nb::gil_scoped_release>());
  m.def("threads", [] { return innkeeper::ThreadPool::shared().size(); });

  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::system_error& error) {
      errno = error.code().value();
      PyErr_SetFromErrno(PyExc_OSError);
    }
  });
  nb::class_<innkeeper::Mapping>(m, "Mapping")
      .def_static("of_file", &innkeeper::Mapping::of_file, "descriptor"_a)
      .def_prop_ro("size", &innkeeper::Mapping::size)
      .def("bytes", [](innkeeper::Mapping& self, size_t offset, const std::vector<int>& shape) {
        return self.bytes(offset, mlx::core::Shape(shape.begin(), shape.end()));
      }, "offset"_a, "shape"_a, nb::call_guard<nb::gil_scoped_release>());

  m.def("product", &innkeeper::product, "x"_a, "blocks"_a, "type"_a, "transpose"_a = true, "stream"_a = nb::none());
  m.def("dense", &innkeeper::dense, "x"_a, "blocks"_a, "type"_a, "bias"_a.none() = nb::none(), "activation"_a = -1,
        "stream"_a = nb::none());
  m.def("expert_product", &innkeeper::expert_product, "x"_a, "blocks"_a, "experts"_a, "type"_a, "share"_a = 1,
        "stream"_a = nb::none());
  m.def("head_product", &innkeeper::head_product, "x"_a, "blocks"_a, "type"_a, "transpose"_a = true,
        "stream"_a = nb::none());
  m.def("gated_product", &innkeeper::gated_product, "x"_a, "gate"_a, "up"_a, "gate_type"_a, "up_type"_a,
        "activation"_a, "stream"_a = nb::none());
  m.def("embedding_rows", &innkeeper::embedding_rows, "blocks"_a, "ids"_a, "type"_a, "stream"_a = nb::none());
  m.def("rms_norm", &innkeeper::rms_norm, "x"_a, "weight"_a.none(), "eps"_a, "stream"_a = nb::none());
  m.def("layer_norm", &innkeeper::layer_norm, "x"_a, "added"_a.none(), "weight"_a, "bias"_a.none(), "eps"_a,
        "stream"_a = nb::none());
  m.def("rope", &innkeeper::rope, "x"_a, "dims"_a, "traditional"_a, "base"_a, "scale"_a, "offset"_a,
        "freqs"_a.none() = nb::none(), "stream"_a = nb::none());
  m.def("gated", &innkeeper::gated, "gate"_a, "up"_a, "activation"_a, "stream"_a = nb::none());
  m.def("attention", &innkeeper::attention, "q"_a, "k"_a, "v"_a, "scale"_a, "causal"_a, "mask"_a.none() = nb::none(),
        "cap"_a = 0.0f, "stream"_a = nb::none());
  m.def("log_sum_exp", &innkeeper::log_sum_exp, "x"_a, "stream"_a = nb::none());
  m.def("draw", &innkeeper::draw, "logits"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "numbers"_a,
        "stream"_a = nb::none());
  m.def("softmax", &innkeeper::softmax, "x"_a, "stream"_a = nb::none());

  using innkeeper::Layer, innkeeper::MatrixArguments, innkeeper::NormArguments;
  nb::class_<Layer>(m, "Layer")
      .def("__init__",
           [](Layer* self, const NormArguments& input_norm, const MatrixArguments& q, const MatrixArguments& k,
              const MatrixArguments& v, const MatrixArguments& o, const std::optional<NormArguments>& q_norm,
              const std::optional<NormArguments>& k_norm, int heads, int kv_heads, int rope_dims, bool rope_traditional,
              float rope_base, float rope_scale, float rope_magnitude, const std::optional<mlx::core::array>& rope_wavelengths,
              const std::optional<NormArguments>& after_attention, const NormArguments& mlp_norm, const MatrixArguments& gate,
              const MatrixArguments& up, const MatrixArguments& down, int activation,
              const std::optional<NormArguments>& after_mlp) {
             new (self) Layer({input_norm, q, k, v, o, q_norm, k_norm, heads, kv_heads, rope_dims, rope_traditional, rope_base,
                               rope_scale, rope_magnitude, rope_wavelengths, after_attention, mlp_norm, gate, up, down, activation,
                               after_mlp});
           },
           nb::kw_only(), "input_norm"_a, "q"_a, "k"_a, "v"_a, "o"_a, "q_norm"_a.none(), "k_norm"_a.none(), "heads"_a,
           "kv_heads"_a, "rope_dims"_a, "rope_traditional"_a, "rope_base"_a, "rope_scale"_a, "rope_magnitude"_a,
           "rope_wavelengths"_a.none(), "after_attention"_a.none(), "mlp_norm"_a, "gate"_a, "up"_a, "down"_a, "activation"_a,
           "after_mlp"_a.none())
      .def("project", &Layer::project, "x"_a, "offset"_a, "stream"_a = nb::none())
      .def("finish", &Layer::finish, "attended"_a, "x"_a, "stream"_a = nb::none());
}
