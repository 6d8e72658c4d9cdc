"""The course: lessons (NN_topic.py, built into NN_topic.ipynb) and `course.lab`, the package behind them."""
