"""Short passages of our own, on which models are compared: prose, code, maths, chats, data and other scripts."""

PASSAGES = (
    "The capital of France is Paris, which lies on the river Seine.",
    "Water boils at 100 degrees Celsius, but only at sea level.",
    "def add(a, b):\n    return a + b\n",
    "She opened the old letter, read it twice, and then put it back into the drawer without a word.",
    "If 3x + 5 = 20, then 3x = 15 and x = 5. Check: 3 * 5 + 5 = 20.",
    "The sum of the first n odd numbers is $n^2$: 1 + 3 + 5 + 7 = 16 = 4^2. So the answer is \\boxed{16}.",
    "User: How many legs have two spiders?\nAssistant: One spider has eight legs, so two have sixteen.",
    'for line in open("log.txt"):\n    if "error" in line:\n        count += 1  # one more\nprint(count)\n',
    '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3, "metric": true}}',
    "SELECT city, COUNT(*) FROM trips WHERE year >= 2020 GROUP BY city ORDER BY 2 DESC LIMIT 10;",
    "# Plan\n\n1. Read the bug report.\n2. Write a test that fails.\n3. Mend the code, and run the test again.\n",
    "Der Zug nach Köln fährt um 14:05 Uhr von Gleis 7 ab, heute etwa zehn Minuten später.",
    "今天的天气很好,我们去公园散步吧。",
    "no no no no no no no no no no no no yes no no no no no",
    "pi is about 3.14159265358979, e is about 2.71828182845905, and 2 ** 64 is 18446744073709551616.",
    "The trial of 240 people, half of whom got the drug, found no difference (p = 0.41); a larger one is planned.",
)
