#define INNKEEPER_VARIANT variant_avx512vnni
#include "variant.h"

namespace innkeeper {
extern const Kernels kernels_avx512vnni;
const Kernels kernels_avx512vnni = variant_avx512vnni::make_kernels("avx512vnni");
}  // namespace innkeeper
