#define INNKEEPER_VARIANT variant_generic
#include "variant.h"

namespace innkeeper {
extern const Kernels kernels_generic;
const Kernels kernels_generic = variant_generic::make_kernels("generic");
}  // namespace innkeeper
