"""Running trees: the interpreter, the LangGraph compiler, callbacks, the runner."""
