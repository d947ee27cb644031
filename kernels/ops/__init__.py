"""Operations: each checks the operands of a public function when a kernel is compiled, and calls the path."""
