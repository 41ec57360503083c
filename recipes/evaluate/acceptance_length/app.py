from pathlib import Path

import evaluate
from evaluate.utils import launch_gradio_widget


module = evaluate.load(str(Path(__file__).with_name("acceptance_length.py")), module_type="measurement")
launch_gradio_widget(module)
