"""What every layer uses: errors, variables, the choice of GPU or simulator, words for what mends an error."""
