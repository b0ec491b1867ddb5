#define INNKEEPER_VARIANT variant_dotprod
#include "variant.h"

namespace innkeeper {
extern const Kernels kernels_dotprod;
const Kernels kernels_dotprod = variant_dotprod::make_kernels("dotprod");
}  // namespace innkeeper
