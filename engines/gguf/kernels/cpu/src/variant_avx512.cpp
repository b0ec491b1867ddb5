#define INNKEEPER_VARIANT variant_avx512
#include "variant.h"

namespace innkeeper {
extern const Kernels kernels_avx512;
const Kernels kernels_avx512 = variant_avx512::make_kernels("avx512");
}  // namespace innkeeper
