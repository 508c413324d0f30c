// docs/adding-a-layer.md, adding-an-optimizer.md and adding-a-schedule.md: their diffs fit the files as they are, and
// cost what is said.
#include "../support/page_diffs.h"

namespace sluice {
namespace {

TEST(AddingPages, TheirDiffsFitTheFilesAndCostWhatIsSaid) {
  for (const char* page : {"adding-a-layer.md", "adding-an-optimizer.md", "adding-a-schedule.md"}) {
    const std::vector<test::Example> examples = test::examples_of(page);
    ASSERT_EQ(examples.size(), 1U) << page;
    const test::Example& example = examples[0];
    test::expect_to_fit(example);
    EXPECT_TRUE(example.title.ends_with(example.cost())) << example.title << ", but it is " << example.cost();
    EXPECT_LE(example.files(), 3U) << page;
    // What `git diff --stat` says is the diff that is shown.
    bool stat = false;
    for (const std::string& line : test::lines_of(std::string(SLUICE_SOURCE_DIR "/docs/") + page)) {
      stat = stat || line == " " + std::to_string(example.files()) + " files changed, " +
                                 std::to_string(example.changed()) + " insertions(+)";
    }
    EXPECT_TRUE(stat) << page << ": no line of a stat";
  }
}

}  // namespace
}  // namespace sluice
