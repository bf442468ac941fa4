#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "tests/support/test_data.h"

int main(int argc, char** argv) {
  troupe::tests::put_temporary_files_in_memory();
  return doctest::Context(argc, argv).run();
}
