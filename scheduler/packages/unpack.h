#pragma once
// Folders and files of a package's file, which somebody sent.

#include <span>
#include <string>

#include "runtime/base/status.h"

namespace troupe::scheduler {

// Makes `directory`, which must not be there, with all that is in the package's file `bytes`:
// nobody may write to what is made: files are readable by their owner alone, and folders closed.
// Whatever the bytes are, nothing outside of `directory` is touched. kDataLoss: it is no package,
// or not a whole one; kInvalidArgument as check_entries(); then, and where writing fails, what was
// made is removed.
Status unpack_package(std::span<const std::byte> bytes, const std::string& directory);

// kDataLoss where something in `directory` is not what unpack_package() made of it.
Status check_unpacked(std::span<const std::byte> bytes, const std::string& directory);

// Removes a folder that unpack_package() made, with all that is in it; ok where there is none.
Status remove_unpacked(const std::string& directory);

}  // namespace troupe::scheduler
