"""Plans for sizes that were not seen before: outlines, replayed bindings, formulas of sizes and routes along them."""
