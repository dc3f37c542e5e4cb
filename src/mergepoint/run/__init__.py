"""How it runs: the interpreter, the LangGraph compiler, the recorder, the runner."""
