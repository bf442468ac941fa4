#include "tests/actors/chaos_cluster/tally.h"
#include "troupe/actor.h"

int main(int argc, char** argv) {
  return troupe::host_main(argc, argv, troupe::actors<troupe::tests::Tally, troupe::tests::Ledger>)
      .value_or(2);
}
