// A disk that is slow on demand, for `tools/torture head`: loaded before the C library (LD_PRELOAD)
// it makes each fsync and fdatasync wait for as many milliseconds as the file that
// TROUPE_SLOW_DISK names holds. A missing or empty file: no wait. Each wait adds a byte to that
// file's name with ".waits" behind it, so that one can see that there were any.

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace {

void wait_as_told() {
  const char* path = ::getenv("TROUPE_SLOW_DISK");
  if (path == nullptr) return;
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return;
  long wait_ms = 0;
  if (std::fscanf(file, "%ld", &wait_ms) != 1) wait_ms = 0;
  std::fclose(file);
  if (wait_ms <= 0) return;
  const std::string waits = std::string(path) + ".waits";
  const int counted = ::open(waits.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (counted < 0 || ::write(counted, ".", 1) != 1) std::perror(waits.c_str());
  if (counted >= 0) ::close(counted);
  const timespec wait{wait_ms / 1000, (wait_ms % 1000) * 1'000'000};
  ::nanosleep(&wait, nullptr);
}

int call_next(const char* name, int fd) {
  using Sync = int (*)(int);
  return reinterpret_cast<Sync>(::dlsym(RTLD_NEXT, name))(fd);
}

}  // namespace

extern "C" int fsync(int fd) {
  wait_as_told();
  return call_next("fsync", fd);
}

extern "C" int fdatasync(int fd) {
  wait_as_told();
  return call_next("fdatasync", fd);
}
