#include <cstdio>

#include <troupe/cluster.h>

#include "actors.h"

int main(int argc, char** argv) {
  // The processes of the actors are this program, too.
  if (auto code = troupe::host_main(argc, argv, troupe::actors<Book>)) return *code;

  auto cluster = troupe::Cluster::start_embedded().value();
  auto book = cluster.spawn<Book>({.name = "book", .max_restarts = -1}).value();
  for (int i = 0; i < 10; ++i) book.call<&Book::add>(i, 100).get().value();
  std::printf("%zu bookings\n", book.call<&Book::bookings>().get().value().size());
}
