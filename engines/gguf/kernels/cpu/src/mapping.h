// A file in memory, and arrays over parts of it that are never copied.
#pragma once

#include <cstddef>
#include <memory>

#include "mlx/mlx.h"

namespace innkeeper {

namespace mx = mlx::core;

// Read only. Arrays keep it alive, whatever becomes of the file's descriptor or its name.
class Mapping : public std::enable_shared_from_this<Mapping> {
 public:
  // Maps the whole of an open file. std::system_error when the system will not.
  static std::shared_ptr<Mapping> of_file(int descriptor);

  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  size_t size() const { return size_; }

  // uint8 [shape] at `offset`, which is 8 or more; its pages are read now, where the system can be told to. std::invalid_argument where that is not within the file.
  mx::array bytes(size_t offset, mx::Shape shape);

 private:
  Mapping(void* data, size_t size) : data_(data), size_(size) {}

  void fetch(size_t offset, size_t length) const;

  void* data_;
  size_t size_;
};

}  // namespace innkeeper
