// Returns 0 when the installed library links and answers: there is nothing to compare.
#include <deltawire/deltawire.h>

int main() {
  const auto version = deltawire::Diff("missing-a", "missing-b", "patch");
  return !version && version.error().code == "not_found" ? 0 : 1;
}
