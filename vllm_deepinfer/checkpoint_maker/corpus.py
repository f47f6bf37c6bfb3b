"""The text the tiny model's tokenizer is trained on, and whose word order its weights lean to."""

from __future__ import annotations

CORPUS = """\
The lighthouse on the north shore has kept the same hours for more than a hundred years. Every \
evening, when the sun goes down behind the hills, the keeper climbs the narrow stairs, lights the \
lamp and writes one line in a large brown book. The line gives the date, the wind, the state of \
the sea and the number of ships that have passed since morning. Nobody has ever asked for the \
book, but it has never been thrown away, and the shelves in the lower room are full of it.

A visitor once asked what the book was for. The keeper thought about the question for a while. \
"It is for the next keeper," she said. "When I am not sure what a change in the weather means, I \
look for a day that was like this one. I do not read the whole book. I look at the last few pages \
with care, and then I look up a few older pages that seem to say something about today." The \
visitor said that this sounded like a good way to remember things, and she agreed.

There are two kinds of memory in this story. One is short and exact: the last hundred lines, read \
word by word. The other is long and rough: many thousands of lines, of which only the best matches \
are opened again. If the first is lost, the work stops at once. If the second is lost, the work \
goes on, but it gets worse, and it may take some time before anyone can say why.

Machines that answer questions work in much the same way. They read the request, keep a small \
window of recent words, and search a larger store for older words that matter. They write one word \
after another. Sometimes a quick helper guesses the next five words, and the machine only checks \
the guess. When the guess is right, several words are written in the time of one. When the guess \
is wrong, the machine keeps the part that was right and throws the rest away, so the answer is the \
same as it would have been without the helper.

How does the machine know which words to check? It keeps count. If the first word of a guess was \
right nine times out of ten, and the fifth only three times out of ten, then it is better to check \
one word for many readers than five words for one reader. The cost of a check is not always the \
same: 8 words may cost as much as 64, and 65 may cost far more than 64. A careful machine measures \
the cost, and it measures again when the load changes.

Here is what a reader should expect from a small model with random weights. It will answer every \
question, it will stop when it is told to stop, and it will give the same answer when it is asked \
again with the same seed. It will not know the capital of France, the year of the first moon \
landing, or the sum of 17 and 25. It was not made to know things. It was made so that every part \
of the system can be tested in a few seconds on a computer that fits in a bag.

The user asks: "What is the weather in Paris today?" The assistant may call a tool named \
get_weather with the parameter city and the value "Paris". The tool returns a result such as \
{"temperature": 21, "unit": "celsius", "sky": "clear"}. The assistant then writes: "It is 21 \
degrees and clear in Paris today." If the tool fails, the assistant says so in plain words and \
does not make up a number.

Good systems share a few habits. They say what they can do before they are asked to do it. They \
refuse what they cannot do, and they name the reason. They count what they drop. They do not hide \
a slow part behind a fast one. They write down the time, the wind and the state of the sea, and \
they keep the book where the next keeper can find it.

In the winter the days are short, and the lamp burns for sixteen hours. In the summer it burns for \
seven. The oil has to be carried up the stairs by hand, so the keeper knows the length of every \
night by the weight of the can. That, she says, is the part of the work that the book does not \
show: a number is easy to write and hard to carry.
"""
