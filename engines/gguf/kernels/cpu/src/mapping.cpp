#include "mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace innkeeper {

std::shared_ptr<Mapping> Mapping::of_file(int descriptor) {
  struct stat status;
  if (fstat(descriptor, &status) != 0) throw std::system_error(errno, std::generic_category());
  const size_t size = static_cast<size_t>(status.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (data == MAP_FAILED) throw std::system_error(errno, std::generic_category());
  return std::shared_ptr<Mapping>(new Mapping(data, size));
}

Mapping::~Mapping() { munmap(data_, size_); }

mx::array Mapping::bytes(size_t offset, mx::Shape shape) {
  size_t length = 1;
  for (const auto each : shape) length *= static_cast<size_t>(each < 0 ? 0 : each);
  if (offset < sizeof(size_t) || offset > size_ || length > size_ - offset) {
    throw std::invalid_argument("[innkeeper] this does not lie within the file");
  }
  fetch(offset, length);
  // MLX's CPU allocator keeps a buffer's size in the word before its data, and a buffer is the address of that word. For data
  // that is not its own the word is never believed: the buffer is neither freed nor reused.
  mx::allocator::Buffer buffer(static_cast<char*>(data_) + offset - sizeof(size_t));
  return mx::array(mx::allocator::Data(buffer, [held = shared_from_this()](mx::allocator::Buffer) {}), std::move(shape),
                   mx::uint8);
}

void Mapping::fetch(size_t offset, size_t length) const {
  static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t start = offset / page * page;
  char* from = static_cast<char*>(data_) + start;
#if defined(MADV_POPULATE_READ)
  if (madvise(from, offset + length - start, MADV_POPULATE_READ) == 0) return;
#endif
  madvise(from, offset + length - start, MADV_WILLNEED);
}

}  // namespace innkeeper
