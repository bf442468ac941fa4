#include "actors/host.h"
#include "tests/actors/chaos_cluster/tally.h"

int main(int argc, char** argv) {
  return troupe::host_main(argc, argv, troupe::actors<troupe::tests::Tally, troupe::tests::Ledger>)
      .value_or(2);
}
